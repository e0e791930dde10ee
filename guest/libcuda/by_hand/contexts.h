// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "objects.h"
#include "thread_object.h"

namespace kvgpu::guest {

// A thread's: the last one is current. Contexts are never given back to the allocator.
struct ContextStack : std::vector<Context*> {};

// The calling thread's current context, green or not; null: none. An inactive primary context
// counts as current, as in the driver. Whoever needs it more than once passes it on: a look at what
// a thread has for itself is a call into the loader.
inline Context* current_itself() {
  const auto& stack = of_this_thread<ContextStack>();
  return stack.empty() ? nullptr : stack.back();
}
// For a green context that lives the primary one.
inline Context* current_context(Context* itself = current_itself()) {
  const bool is_green = itself != nullptr && itself->primary != nullptr && !itself->destroyed;
  return is_green ? itself->primary : itself;
}
// Active from here on, retained or not.
CUresult wake_primary(Context& primary);
void push_context(Context& context);
void pop_context();
// In the thread's stack, but not current.
bool is_beneath(const Context& context);

// Flags of contexts that are passed on.
inline constexpr unsigned CONTEXT_FLAGS =
    CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | CU_CTX_SYNC_MEMOPS;

uint64_t next_context_id();  // of cuCtxGetId

// The current one. Where there is none, the context of a stream that has a handle: as natively,
// that is enough for most calls.
[[gnu::always_inline]] inline Context* context_of(CUstream handle,
                                                  Context* itself = current_itself()) {
  if (Context* const current = current_context(itself)) return current;
  const Stream* const stream = tables().streams.find(to_wire(handle));
  return stream == nullptr ? nullptr : stream->context;
}
// The object behind a stream argument: null, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are in the
// current context, a handle says itself where it is. Null and `error` where it is no stream.
Stream* find_stream(CUstream handle, CUresult* error, Context* itself = current_itself());
// The same where its context is active. The first: of all streams but the legacy one.
Stream* find_named_stream(CUstream handle, CUresult* error, Context* itself);
inline Stream* find_stream_there(CUstream handle, CUresult* error, Context* itself) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return itself->legacy;
  return find_named_stream(handle, error, itself);
}
// The same for a question about it: none while its capture is broken.
Stream* find_unbroken(CUstream stream, CUresult* error);

// A new stream object with a progress word, known to the worker. Null and `error` on failure.
Stream* make_stream(Context& owner, unsigned flags, int priority, CUresult* error);

}  // namespace kvgpu::guest
