// SPDX-License-Identifier: Apache-2.0
// The thread's context stack and what can be asked of a context.
#include "contexts.h"

#include <algorithm>
#include <vector>

#include "after_wait.h"
#include "call.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "kvgpu/plain_calls.gen.h"
#include "refuse.h"
#include "thread_object.h"

namespace kvgpu::guest {

static ContextStack& context_stack() { return of_this_thread<ContextStack>(); }

uint64_t next_context_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void push_context(Context& context) { context_stack().push_back(&context); }
void pop_context() { context_stack().pop_back(); }
bool is_beneath(const Context& context) {
  const ContextStack& stack = context_stack();
  return &context != current_itself() && std::ranges::find(stack, &context) != stack.end();
}

CUresult ctx_get_current(CUcontext* pctx) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = current_itself();
  *pctx = context == nullptr ? nullptr : from_wire<CUcontext>(context->handle);
  return CUDA_SUCCESS;
}

CUresult ctx_set_current(CUcontext ctx) {
  Context* const context = ctx == nullptr ? nullptr : find_itself(ctx);
  if (ctx != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // CUDA 13.0 cuda.h: replaces the top; null pops it.
  if (!context_stack().empty()) context_stack().pop_back();
  if (context != nullptr) context_stack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult ctx_push_current_v2(CUcontext ctx) {
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = find_itself(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult ctx_pop_current_v2(CUcontext* pctx) {
  if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx != nullptr) *pctx = from_wire<CUcontext>(context_stack().back()->handle);
  context_stack().pop_back();
  return CUDA_SUCCESS;
}

// The names before CUDA 4.0. Driver 580 pushes what cuCtxCreate of that time has made, and here
// there is no such context (older_forms.cpp).
CUresult ctx_push_current(CUcontext ctx) {
  return ctx == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult ctx_pop_current(CUcontext* pctx) { return ctx_pop_current_v2(pctx); }

CUresult ctx_get_device(CUdevice* device) { return ctx_get_device_v2(device, nullptr); }

CUresult ctx_get_device_v2(CUdevice* device, CUcontext ctx) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = ctx == nullptr ? current_context() : find(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult ctx_get_flags(unsigned int* flags) {
  const Context* const context = current_context();
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // On driver 580 a primary context maps host memory whatever it was asked for.
  *flags = context->flags | (context->is_primary ? unsigned{CU_CTX_MAP_HOST} : 0);
  return CUDA_SUCCESS;
}

CUresult ctx_set_flags(unsigned int flags) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if ((flags & ~CONTEXT_FLAGS) != 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result =
      call.sync(wire::Op::cuCtxSetFlags, wire::ContextFlags{call.context(), flags, 0});
  if (result == CUDA_SUCCESS) call.context_object().flags = flags;
  return result;
}

CUresult ctx_get_id(CUcontext ctx, unsigned long long* ctxId) {
  const Context* const context = ctx == nullptr ? current_itself() : find_itself(ctx);
  if (ctxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* const gone = ctx == nullptr ? context : tables().contexts.find(to_wire(ctx));
  if (gone != nullptr && gone->primary != nullptr && gone->destroyed) {
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *ctxId = context->id;
  return CUDA_SUCCESS;
}

CUresult ctx_get_api_version(CUcontext ctx, unsigned int* version) {
  const Context* const context = ctx == nullptr ? current_context() : find(ctx);
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr || !context->active) return CUDA_ERROR_INVALID_CONTEXT;
  *version = context->info.api_version;
  return CUDA_SUCCESS;
}

CUresult ctx_get_stream_priority_range(int* leastPriority, int* greatestPriority) {
  const Context* const context = current_context();
  if (context == nullptr || !context->active) return CUDA_ERROR_INVALID_CONTEXT;
  if (leastPriority != nullptr) *leastPriority = context->info.least_priority;
  if (greatestPriority != nullptr) *greatestPriority = context->info.greatest_priority;
  return CUDA_SUCCESS;
}

CUresult finish_work(Context& context) {
  std::vector<StreamNumber> numbers;
  {
    const std::lock_guard lock(home_of(context).mutex);
    for (Stream* stream : home_of(context).streams) {
      if (stream->context != &context && stream->owner != &context) continue;
      if (stream->capture.load() != nullptr) continue;
      uint64_t number;
      if (const CUresult bad = mark_stream(*stream, &number)) return bad;
      numbers.push_back({stream->word, number});
    }
    append_leaving(context, Streams::ALL, &numbers);
  }
  for (const auto& [word, number] : numbers) {
    if (const CUresult bad = Session::get().wait(word, number)) return bad;
  }
  return CUDA_SUCCESS;
}

CUresult ctx_synchronize() { return ctx_synchronize_v2(nullptr); }

CUresult ctx_synchronize_v2(CUcontext ctx) {
  Context* const itself = ctx == nullptr ? current_itself() : find_itself(ctx);
  if (ctx != nullptr && itself == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const Call call(CaptureRule::FORBIDDEN, ctx == nullptr ? nullptr : &home_of(*itself));
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (!itself->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const CUresult bad = break_captures(*itself)) return bad;
  return after_wait(finish_work(*itself));
}

CUresult ctx_set_cache_config(CUfunc_cache config) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const wire::cuCtxSetCacheConfig_in in{call.context(), static_cast<uint64_t>(config)};
  const CUresult result = call.sync(wire::Op::cuCtxSetCacheConfig, in);
  ++call.context_object().n_changes;
  return result;
}

}  // namespace kvgpu::guest
