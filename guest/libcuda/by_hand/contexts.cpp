// SPDX-License-Identifier: Apache-2.0
// The thread's context stack and the primary contexts: guest state; the worker is told when a
// context begins and ends.
#include "contexts.h"

#include <vector>

#include "call.h"
#include "context_storage.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "memory_map.h"

namespace kvgpu::guest {

namespace {

thread_local std::vector<Context*>
    context_stack;  // the last one is current; null entries are allowed

Context* primary_of(CUdevice device, CUresult* error) {
  Session& session = Session::get();
  *error = CUDA_SUCCESS;
  if (!session.is_open()) {
    *error = CUDA_ERROR_NOT_INITIALIZED;
  } else if (device < 0 || static_cast<size_t>(device) >= session.devices().size()) {
    *error = CUDA_ERROR_INVALID_DEVICE;
  }
  return *error == CUDA_SUCCESS ? session.devices()[static_cast<size_t>(device)].primary : nullptr;
}

// Holding context.mutex.
CUresult activate(Context& context) {
  Session& session = Session::get();
  if (context.legacy == nullptr) {
    uint64_t first_number;
    Stream* const legacy = tables().streams.create();
    legacy->context = &context;
    legacy->id = context.id;
    legacy->word = session.allocate_word(&first_number);
    if (legacy->word >= N_PROGRESS_WORDS) return CUDA_ERROR_OUT_OF_MEMORY;
    legacy->issued = first_number;
    context.legacy = legacy;
  }
  const wire::ContextRetain body{context.handle,       context.legacy->handle,
                                 context.legacy->word, static_cast<uint32_t>(context.device),
                                 context.flags,        0};
  ReplyBuffer out{&context.info, sizeof context.info};
  const CUresult result =
      session.call(wire::Op::cuDevicePrimaryCtxRetain, context.device, &out, part(body));
  if (result == CUDA_SUCCESS) {
    context.streams.assign(1, context.legacy);
    context.active.store(true, std::memory_order_release);
  }
  return result;
}

// Events and modules die with their context; a library lives on, but the modules it gave do not.
void forget_objects(const Context& context) {
  for (const wire::Handle handle : tables().events.handles()) {
    const Event* const event = tables().events.find(handle);
    if (event != nullptr && event->context == &context) tables().events.remove(handle);
  }
  for (const wire::Handle handle : tables().modules.handles()) {
    Module* const module = tables().modules.find(handle);
    if (module == nullptr) continue;
    if (module->context == &context) forget(handle);
    if (module->is_library && module->module_of_library != 0) {
      forget(module->module_of_library);
      module->module_of_library = 0;
    }
  }
}

// Holding context.mutex. What was made in the context goes with it.
CUresult deactivate(Context& context) {
  const wire::ContextReset body{context.handle};
  const CUresult result =
      Session::get().call(wire::Op::cuDevicePrimaryCtxReset, context.device, nullptr, part(body));
  if (result != CUDA_SUCCESS) return result;
  context.active.store(false, std::memory_order_release);
  for (Stream* stream : context.streams) {
    if (stream == context.legacy) continue;
    Session::get().free_word(stream->word, stream->issued);
    tables().streams.remove(stream->handle);
  }
  context.streams.clear();
  context.idle_thread_streams.clear();
  forget_objects(context);
  memory_map().forget_context(context);
  return CUDA_SUCCESS;
}

}  // namespace

Context* current_context() { return context_stack.empty() ? nullptr : context_stack.back(); }

CUresult device_primary_ctx_retain(CUcontext* pctx, CUdevice dev) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult error;
  Context* const context = primary_of(dev, &error);
  if (context == nullptr) return error;
  if ((error = Session::get().pending_error()) != CUDA_SUCCESS) return error;
  const std::lock_guard lock(context->mutex);
  if (!context->active && (error = activate(*context)) != CUDA_SUCCESS) return error;
  ++context->retain_count;
  *pctx = from_wire<CUcontext>(context->handle);
  return CUDA_SUCCESS;
}

CUresult device_primary_ctx_release(CUdevice dev) {
  CUresult error;
  Context* const context = primary_of(dev, &error);
  if (context == nullptr) return error;
  {
    const std::lock_guard lock(context->mutex);
    if (context->retain_count == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->retain_count > 0) return CUDA_SUCCESS;
  }
  return device_primary_ctx_reset(dev);
}
CUresult device_primary_ctx_release_v2(CUdevice dev) { return device_primary_ctx_release(dev); }

CUresult device_primary_ctx_reset(CUdevice dev) {
  CUresult error;
  Context* const context = primary_of(dev, &error);
  if (context == nullptr) return error;
  // Other libraries' code, which may call us: no lock is held.
  if (context->active) run_storage_destructors(*context);
  const std::lock_guard lock(context->mutex);
  return context->active ? deactivate(*context) : CUDA_SUCCESS;
}
CUresult device_primary_ctx_reset_v2(CUdevice dev) { return device_primary_ctx_reset(dev); }

CUresult device_primary_ctx_get_state(CUdevice dev, unsigned int* flags, int* active) {
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult error;
  if (const Context* context = primary_of(dev, &error)) {
    *flags = context->flags;
    *active = context->active.load(std::memory_order_acquire);
  }
  return error;
}

CUresult device_primary_ctx_set_flags(CUdevice dev, unsigned int flags) {
  constexpr unsigned KNOWN = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX;
  if ((flags & ~KNOWN) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult error;
  if (Context* context = primary_of(dev, &error)) context->flags = flags;
  return error;
}
CUresult device_primary_ctx_set_flags_v2(CUdevice dev, unsigned int flags) {
  return device_primary_ctx_set_flags(dev, flags);
}

CUresult ctx_get_current(CUcontext* pctx) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Session::get().is_open()) return CUDA_ERROR_NOT_INITIALIZED;
  const Context* const context = current_context();
  *pctx = context == nullptr ? nullptr : from_wire<CUcontext>(context->handle);
  return CUDA_SUCCESS;
}

CUresult ctx_set_current(CUcontext ctx) {
  if (!Session::get().is_open()) return CUDA_ERROR_NOT_INITIALIZED;
  Context* const context = ctx == nullptr ? nullptr : find(ctx);
  if (ctx != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // CUDA 13.0 cuda.h: replaces the top; null pops it.
  if (!context_stack.empty()) context_stack.pop_back();
  if (context != nullptr) context_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult ctx_push_current_v2(CUcontext ctx) {
  if (!Session::get().is_open()) return CUDA_ERROR_NOT_INITIALIZED;
  Context* const context = find(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult ctx_pop_current_v2(CUcontext* pctx) {
  if (!Session::get().is_open()) return CUDA_ERROR_NOT_INITIALIZED;
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx != nullptr) *pctx = from_wire<CUcontext>(context_stack.back()->handle);
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult ctx_get_device(CUdevice* device) { return ctx_get_device_v2(device, nullptr); }

CUresult ctx_get_device_v2(CUdevice* device, CUcontext ctx) {
  if (!Session::get().is_open()) return CUDA_ERROR_NOT_INITIALIZED;
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
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult ctx_get_id(CUcontext ctx, unsigned long long* ctxId) {
  const Context* const context = ctx == nullptr ? current_context() : find(ctx);
  if (ctxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
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

CUresult ctx_synchronize() { return ctx_synchronize_v2(nullptr); }

CUresult ctx_synchronize_v2(CUcontext ctx) {
  Context* const wanted = ctx == nullptr ? nullptr : find(ctx);
  if (ctx != nullptr && wanted == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const Call call(CaptureRule::FORBIDDEN, wanted);
  if (call.status() != CUDA_SUCCESS) return call.status();
  Context& context = call.context_object();
  if (!context.active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Session& session = Session::get();
  if (session.prints.load(std::memory_order_relaxed)) {
    return call.sync(wire::Op::HOST_SYNC, wire::HostSync{context.handle});
  }
  std::vector<std::pair<uint32_t, uint64_t>> numbers;
  {
    const std::lock_guard lock(context.mutex);
    for (Stream* stream : context.streams) {
      if (stream->capture.load() != nullptr) continue;
      uint64_t number;
      if (const CUresult bad = mark_stream(*stream, &number)) return bad;
      numbers.emplace_back(stream->word, number);
    }
  }
  for (const auto& [word, number] : numbers) {
    if (const CUresult bad = session.wait(word, number)) return bad;
  }
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
