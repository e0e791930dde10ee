// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "objects.h"

namespace kvgpu::guest {

// The calling thread's current context; null: none. An inactive primary context counts as current,
// as in the driver. For a green context that lives it is the primary one.
Context* current_context();
// The same, or the green context itself.
Context* current_itself();
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

// The object behind a stream argument: null, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are in the
// current context, a handle says itself where it is. Null and `error` where it is no stream.
Stream* find_stream(CUstream stream, CUresult* error);
// Where none is current, the context of a stream that has a handle: as natively, that is enough for
// most calls. Otherwise null: the current one.
Context* context_of(CUstream stream);
// The same for a question about it: none while its capture is broken.
Stream* find_unbroken(CUstream stream, CUresult* error);

// A new stream object with a progress word, known to the worker. Null and `error` on failure.
Stream* make_stream(Context& owner, unsigned flags, int priority, CUresult* error);

}  // namespace kvgpu::guest
