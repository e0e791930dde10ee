// SPDX-License-Identifier: Apache-2.0
// What a program sets on a kernel.
#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/module_calls.h"

namespace kvgpu::worker {

namespace {

// The driver's CUfunction of either kind of handle.
CUresult plain_function(Session& session, wire::Handle handle, CUfunction* function) {
  CUkernel kernel;
  if (session.handles.get(handle, &kernel)) {
    return session.driver->cuKernelGetFunction(function, kernel);
  }
  return session.handles.get(handle, function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

template <typename Call>
CUresult configure(Session& session, const Task& task, Call call) {
  wire::FunctionConfig body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUfunction function;
  if (const CUresult bad = plain_function(session, body.function, &function)) return bad;
  return call(function, body.config);
}

}  // namespace

CUresult func_set_attribute(Session& session, const Task& task, ReplyWriter&) {
  wire::SetAttribute body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUfunction function;
  if (const CUresult bad = plain_function(session, body.function, &function)) return bad;
  return session.driver->cuFuncSetAttribute(
      function, static_cast<CUfunction_attribute>(body.attribute), body.value);
}

CUresult kernel_set_attribute(Session& session, const Task& task, ReplyWriter&) {
  wire::SetAttribute body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUkernel kernel;
  if (!session.handles.get(body.function, &kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return session.driver->cuKernelSetAttribute(static_cast<CUfunction_attribute>(body.attribute),
                                              body.value, kernel, body.device);
}

// Not by the pool: the driver has loaded the function when it took the value first.
CUresult attribute_again(Session& session, const Task& task, ReplyWriter& reply) {
  wire::SetAttribute body;
  if (!task.read(&body)) session.violation(task);
  const CUresult result = body.of_kernel != 0 ? kernel_set_attribute(session, task, reply)
                                              : func_set_attribute(session, task, reply);
  session.note_function_change();
  return result;
}

CUresult func_set_cache_config(Session& session, const Task& task, ReplyWriter&) {
  return configure(session, task, [&](CUfunction function, uint32_t config) {
    return session.driver->cuFuncSetCacheConfig(function, static_cast<CUfunc_cache>(config));
  });
}

CUresult func_set_shared_mem_config(Session& session, const Task& task, ReplyWriter&) {
  return configure(session, task, [&](CUfunction function, uint32_t config) {
    return session.driver->cuFuncSetSharedMemConfig(function, static_cast<CUsharedconfig>(config));
  });
}

CUresult kernel_set_cache_config(Session& session, const Task& task, ReplyWriter&) {
  wire::FunctionConfig body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUkernel kernel;
  if (!session.handles.get(body.function, &kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return session.driver->cuKernelSetCacheConfig(kernel, static_cast<CUfunc_cache>(body.config),
                                                body.device);
}

CUresult func_load(Session& session, const Task& task, ReplyWriter&) {
  wire::FunctionRef body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUfunction function;
  if (const CUresult bad = plain_function(session, body.function, &function)) return bad;
  if (session.driver->cuFuncLoad == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return session.driver->cuFuncLoad(function);
}

CUresult func_is_loaded(Session& session, const Task& task, ReplyWriter& reply) {
  wire::FunctionRef body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUfunction function;
  if (const CUresult bad = plain_function(session, body.function, &function)) return bad;
  if (session.driver->cuFuncIsLoaded == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUfunctionLoadingState state{};
  const CUresult result = session.driver->cuFuncIsLoaded(&state, function);
  reply.put(wire::FunctionState{static_cast<uint32_t>(state), 0});
  return result;
}

}  // namespace kvgpu::worker
