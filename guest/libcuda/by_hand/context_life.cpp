// SPDX-License-Identifier: Apache-2.0
// How contexts begin and end: the primary one of each device, and those of cuCtxCreate. The worker
// is told; everything else is guest state.
#include <algorithm>

#include "call.h"
#include "context_storage.h"
#include "contexts.h"
#include "driver_waits.h"
#include "generated/api.gen.h"
#include "green_contexts.h"
#include "host_memory.h"
#include "kvgpu/context_calls.h"
#include "managed_memory.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

Context* primary_of(CUdevice device, CUresult* error) {
  const DeviceState* const state = Session::get().find_device(device);
  *error = state != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  return state != nullptr ? state->primary : nullptr;
}

// Holding the mutex of the context that it is in. `op` makes the context in the worker.
CUresult activate(Context& context, wire::Op op, const wire::ExecAffinity* affinity = nullptr,
                  uint32_t n_affinity = 0) {
  Session& session = Session::get();
  if (const CUresult bad = make_legacy_stream(context)) return bad;
  const wire::ContextRetain body{context.handle,       context.legacy->handle,
                                 context.legacy->word, static_cast<uint32_t>(context.device),
                                 context.flags,        n_affinity};
  ReplyBuffer out{&context.info, sizeof context.info};
  const Part rest{affinity, static_cast<uint32_t>(n_affinity * sizeof *affinity)};
  const CUresult result = session.call(op, context.device, &out, part(body), rest);
  if (result == CUDA_SUCCESS) {
    context.streams.assign(1, context.legacy);
    context.active.store(true, std::memory_order_release);
  }
  return result;
}

// Events, modules, arrays and executable graphs die with their context; a library lives on, but the
// modules it gave do not.
void forget_objects(const Context& context) {
  for (const wire::Handle handle : tables().graph_execs.handles()) {
    const GraphExec* const exec = tables().graph_execs.find(handle);
    if (exec != nullptr && exec->context == &context) forget(handle);
  }
  for (const wire::Handle handle : tables().events.handles()) {
    const Event* const event = tables().events.find(handle);
    if (event != nullptr && event->context == &context) tables().events.remove(handle);
  }
  for (const wire::Handle handle : tables().arrays.handles()) {
    const Array* const array = tables().arrays.find(handle);
    if (array != nullptr && array->context == &context) forget(handle);
  }
  for (const wire::Handle handle : tables().references.handles()) {
    const Reference* const reference = tables().references.find(handle);
    if (reference != nullptr && reference->context == &context) forget(handle);
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

// Holding context.mutex. What was made in the context goes with it; a primary context keeps its
// legacy stream.
CUresult deactivate(Context& context, wire::Op op) {
  Session& session = Session::get();
  const wire::ContextReset body{context.handle};
  const CUresult result = session.call(op, context.device, nullptr, part(body));
  if (result != CUDA_SUCCESS) return result;
  context.active.store(false, std::memory_order_release);
  ++context.n_changes;
  drop_captures(context);
  for (Stream* stream : context.streams) {
    session.settle_word(stream->word, stream->issued);
    DriverWaits::leave(*stream, stream->issued);
    if (stream == context.legacy && context.is_primary) continue;
    session.free_word(stream->word, stream->issued);
    tables().streams.remove(stream->handle);
  }
  context.streams.clear();
  context.leaving.clear();
  {
    const std::lock_guard lock(context.idle_mutex);
    context.idle_thread_streams.clear();
  }
  forget_objects(context);
  ManagedMemory::get().forget_context(context);
  for (const MemoryRange& range : memory_map().take_context(context)) give_back(range);
  return CUDA_SUCCESS;
}

enum class End { ALWAYS, IF_UNUSED };

// As on driver 580 green contexts that live keep their primary context.
CUresult end_primary(Context& context, End when) {
  if (when == End::ALWAYS && context.n_green > 0) return CUDA_ERROR_NOT_PERMITTED;
  // Other libraries' code, which may call us: no lock is held.
  if (context.active) run_storage_destructors(context);
  const std::lock_guard lock(context.mutex);
  // Another thread may have retained it meanwhile.
  if (!context.active || (when == End::IF_UNUSED && context.retain_count > 0)) return CUDA_SUCCESS;
  if (context.n_green > 0) return CUDA_ERROR_NOT_PERMITTED;
  return deactivate(context, wire::Op::cuDevicePrimaryCtxReset);
}

}  // namespace

CUresult make_legacy_stream(Context& context) {
  if (context.legacy != nullptr) return CUDA_SUCCESS;
  uint64_t first_number;
  const uint32_t word = Session::get().allocate_word(&first_number);
  Stream* const legacy = word < N_PROGRESS_WORDS ? tables().streams.create() : nullptr;
  if (legacy == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  legacy->context = &home_of(context);
  legacy->owner = &context;
  legacy->id = context.id;
  legacy->word = word;
  legacy->issued = first_number;
  context.legacy = legacy;
  return CUDA_SUCCESS;
}

void drop_legacy_stream(Context& context) {
  if (context.legacy == nullptr) return;
  Session::get().free_word(context.legacy->word, context.legacy->issued);
  DriverWaits::leave(*context.legacy, context.legacy->issued);
  tables().streams.remove(context.legacy->handle);
}

// Holding the mutex.
static CUresult activate_primary(Context& context) {
  return context.active ? CUDA_SUCCESS : activate(context, wire::Op::cuDevicePrimaryCtxRetain);
}

CUresult wake_primary(Context& primary) {
  if (const CUresult bad = Session::get().pending_error()) return bad;
  const std::lock_guard lock(primary.mutex);
  return activate_primary(primary);
}

CUresult device_primary_ctx_retain(CUcontext* pctx, CUdevice dev) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult error;
  Context* const context = primary_of(dev, &error);
  if (context == nullptr) return error;
  const std::lock_guard lock(context->mutex);
  // One that a fault has broken can be retained all the same.
  Session& session = Session::get();
  error = context->active ? session.ended_error() : session.pending_error();
  if (error != CUDA_SUCCESS) return error;
  if ((error = activate_primary(*context)) != CUDA_SUCCESS) return error;
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
    if (context->retain_count == context->n_green) return CUDA_ERROR_NOT_PERMITTED;
    if (--context->retain_count > 0) return CUDA_SUCCESS;
  }
  return end_primary(*context, End::IF_UNUSED);
}
CUresult device_primary_ctx_release_v2(CUdevice dev) { return device_primary_ctx_release(dev); }

CUresult device_primary_ctx_reset(CUdevice dev) {
  CUresult error;
  Context* const context = primary_of(dev, &error);
  return context == nullptr ? error : end_primary(*context, End::ALWAYS);
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
  if ((flags & ~CONTEXT_FLAGS) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult error;
  const Context* const context = primary_of(dev, &error);
  if (context != nullptr && context->active.load(std::memory_order_acquire)) {
    return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
  }
  return device_primary_ctx_set_flags_v2(dev, flags);
}
CUresult device_primary_ctx_set_flags_v2(CUdevice dev, unsigned int flags) {
  if ((flags & ~CONTEXT_FLAGS) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult error;
  if (Context* context = primary_of(dev, &error)) context->flags = flags;
  return error;
}

// ---- contexts of cuCtxCreate

namespace {

CUresult create(CUcontext* pctx, const std::vector<wire::ExecAffinity>& affinity, unsigned flags,
                CUdevice dev) {
  CUresult error;
  if (primary_of(dev, &error) == nullptr) return error;
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((error = Session::get().pending_error()) != CUDA_SUCCESS) return error;
  constexpr unsigned COREDUMPS = CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE;
  if ((flags & ~(CONTEXT_FLAGS | COREDUMPS)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & COREDUMPS) != 0) {
    return static_cast<CUresult>(refuse_part("a context with core dumps"));
  }
  // An older host would not see it.
  if (!affinity.empty() && !Session::get().speaks(wire::Op::cuCtxGetExecAffinity)) {
    return static_cast<CUresult>(refuse_part("execution affinity on this host"));
  }
  Context* const context = tables().contexts.create();
  if (context == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  context->device = dev;
  context->flags = flags;
  context->attach_count = 1;
  context->id = next_context_id();
  const std::lock_guard lock(context->mutex);
  const auto n = static_cast<uint32_t>(affinity.size());
  error = activate(*context, wire::Op::cuCtxCreate_v2, affinity.data(), n);
  if (error != CUDA_SUCCESS) {
    drop_legacy_stream(*context);
    context->destroyed = true;
    return error;
  }
  push_context(*context);
  *pctx = from_wire<CUcontext>(context->handle);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult ctx_create_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return create(pctx, {}, flags, dev);
}
CUresult ctx_create(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return create(pctx, {}, flags, dev);
}

CUresult ctx_create_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                       unsigned int flags, CUdevice dev) {
  numParams = std::max(numParams, 0);
  if (numParams != 0 && paramsArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // There are no more kinds of them: what comes twice is refused.
  if (static_cast<uint32_t>(numParams) > wire::MAX_EXEC_AFFINITY) return CUDA_ERROR_INVALID_VALUE;
  std::vector<wire::ExecAffinity> affinity;
  for (int i = 0; i < numParams; ++i) {
    affinity.push_back(
        {static_cast<uint32_t>(paramsArray[i].type), paramsArray[i].param.smCount.val});
  }
  return create(pctx, affinity, flags, dev);
}

CUresult ctx_create_v4(CUcontext* pctx, CUctxCreateParams* params, unsigned int flags,
                       CUdevice dev) {
  if (params == nullptr) return create(pctx, {}, flags, dev);
  if (params->execAffinityParams != nullptr && params->cigParams != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (params->cigParams != nullptr) {
    return static_cast<CUresult>(refuse_part("cuCtxCreate with graphics"));
  }
  return ctx_create_v3(pctx, params->execAffinityParams, params->numExecAffinityParams, flags, dev);
}

CUresult ctx_get_exec_affinity(CUexecAffinityParam* pExecAffinity, CUexecAffinityType type) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pExecAffinity == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const wire::GetExecAffinity body{call.context(), static_cast<uint32_t>(type), 0};
  wire::ExecAffinity out;
  const CUresult result = call.sync(wire::Op::cuCtxGetExecAffinity, body, &out);
  if (result != CUDA_SUCCESS) return result;
  pExecAffinity->type = static_cast<CUexecAffinityType>(out.type);
  pExecAffinity->param.smCount.val = out.value;
  return CUDA_SUCCESS;
}

CUresult ctx_destroy_v2(CUcontext ctx) {
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = find_itself(ctx);
  const bool is_own = context != nullptr && !context->is_primary && context->primary == nullptr;
  if (!is_own) return CUDA_ERROR_INVALID_CONTEXT;
  run_storage_destructors(*context);
  const std::lock_guard lock(context->mutex);
  if (context->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult result = deactivate(*context, wire::Op::cuCtxDestroy_v2);
  if (result != CUDA_SUCCESS) return result;
  context->destroyed = true;
  // CUDA 13.0 cuda.h: popped where it is the caller's current one; other threads keep a context
  // that answers CUDA_ERROR_CONTEXT_IS_DESTROYED.
  if (current_context() == context) pop_context();
  return CUDA_SUCCESS;
}
// As on driver 580 the first form takes none that is beneath another.
CUresult ctx_destroy(CUcontext ctx) {
  const Context* const context = find_itself(ctx);
  if (context != nullptr && is_beneath(*context)) return CUDA_ERROR_INVALID_CONTEXT;
  return ctx_destroy_v2(ctx);
}

CUresult ctx_attach(CUcontext* pctx, unsigned int flags) {
  if (pctx == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  Context& context = call.context_object();
  const std::lock_guard lock(context.mutex);
  if (!context.is_primary) ++context.attach_count;
  *pctx = from_wire<CUcontext>(context.handle);
  return CUDA_SUCCESS;
}

CUresult ctx_detach(CUcontext ctx) {
  Context* const context = find(ctx);
  if (context == nullptr || context->is_primary || context != current_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  {
    const std::lock_guard lock(context->mutex);
    if (--context->attach_count > 0) return CUDA_SUCCESS;
  }
  return ctx_destroy_v2(ctx);
}

}  // namespace kvgpu::guest
