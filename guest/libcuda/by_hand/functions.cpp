// SPDX-License-Identifier: Apache-2.0
// What programs ask about a kernel comes with it and is answered here; what they set is sent on.
#include "call.h"
#include "description.h"
#include "generated/api.gen.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

CUresult get_attribute(int* value, CUfunction_attribute attribute, Function* function) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute < 0 || attribute >= static_cast<int>(wire::N_FUNCTION_ATTRIBUTES)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult bad = need_description(*function)) return bad;
  const int32_t known = function->attributes[attribute].load(std::memory_order_relaxed);
  if (known == wire::ATTRIBUTE_UNKNOWN) return CUDA_ERROR_INVALID_VALUE;
  *value = known;
  return CUDA_SUCCESS;
}

// Of a function of a module; null: the current one.
Context* context_of(const Function* function) {
  const Module* const module =
      function == nullptr ? nullptr : tables().modules.find(function->module);
  return module == nullptr ? nullptr : module->context;
}

// Null: there is no such device.
Context* primary_of(int device) {
  if (Session::get().find_device(device) == nullptr) return nullptr;
  return Session::get().devices()[static_cast<size_t>(device)].primary;
}

CUresult set_attribute(wire::Op op, Function* function, CUfunction_attribute attribute, int value,
                       int device) {
  const Call call(CaptureRule::ALLOWED, context_of(function), ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Context* const home = op == wire::Op::cuKernelSetAttribute ? primary_of(device)
                              : call.context() == 0                ? nullptr
                                                                   : &call.context_object();
  std::optional<FunctionMemo::Setting> setting;
  if (home != nullptr) setting = {static_cast<uint64_t>(op), home->handle, home->n_changes, value};
  if (setting && function->memo.is_set(attribute, *setting)) return CUDA_SUCCESS;
  const bool of_kernel = op == wire::Op::cuKernelSetAttribute;
  const wire::SetAttribute body{call.context(), function->handle, attribute,
                                value,          device,           of_kernel};
  // Libraries change it back and forth, a launch after each, and an answer takes as long as all
  // that the worker has still to do. Of another device the record would not be in the launches'
  // order.
  constexpr wire::Op AGAIN = wire::Op::ATTRIBUTE_AGAIN;
  const bool is_taken = setting && function->memo.was_set(attribute, *setting) &&
                        call.context() != 0 && home->device == call.device() &&
                        Session::get().speaks(AGAIN);
  const CUresult result = is_taken ? call.async(AGAIN, body) : call.sync(op, body);
  if (result != CUDA_SUCCESS) return result;
  if (function->described && attribute >= 0 &&
      attribute < static_cast<int>(wire::N_FUNCTION_ATTRIBUTES)) {
    function->attributes[attribute].store(value, std::memory_order_relaxed);
  }
  function->memo.changed(attribute, setting);
  return CUDA_SUCCESS;
}

CUresult get_param_info(Function* function, size_t index, size_t* offset, size_t* bytes) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = need_description(*function)) return bad;
  if (offset == nullptr || index >= function->params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->params[index].offset;
  if (bytes != nullptr) *bytes = function->params[index].bytes;
  return CUDA_SUCCESS;
}

CUresult get_name(const char** name, const Function* function) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

// The settings of a kernel that are one number.
CUresult set_config(wire::Op op, Function* function, uint32_t config, CUdevice device) {
  const Call call(CaptureRule::ALLOWED, context_of(function), ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result =
      call.sync(op, wire::FunctionConfig{call.context(), function->handle, config, device});
  function->memo.changed(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, std::nullopt);
  return result;
}

}  // namespace

void adopt(Function& function, const Description& description) {
  for (uint32_t i = 0; i < wire::N_FUNCTION_ATTRIBUTES; ++i) {
    function.attributes[i] = description.info.attributes[i];
  }
  const size_t n = std::min(size_t{description.info.n_params}, std::size(description.params));
  function.params.assign(description.params, description.params + n);
  for (const wire::ParamInfo& param : function.params) {
    function.param_bytes = std::max(function.param_bytes, param.offset + param.bytes);
  }
  if (description.info.printing == wire::Printing::CANNOT) function.prints = false;
  function.described.store(true, std::memory_order_release);
}

CUresult describe_kernel(Function& function) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const std::lock_guard lock(function.mutex);
  if (function.described.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  Description out;
  ReplyBuffer reply{&out, sizeof out};
  const wire::KernelInfo body{call.context(), function.handle};
  const CUresult result =
      Session::get().call(wire::Op::KERNEL_INFO, call.device(), &reply, part(body));
  if (result == CUDA_SUCCESS && reply.len_bytes < sizeof out.info) return CUDA_ERROR_UNKNOWN;
  if (result == CUDA_SUCCESS) adopt(function, out);
  return result;
}

// A kernel serves as its function: the worker's driver takes either.
CUresult kernel_get_function(CUfunction* pFunc, CUkernel kernel) {
  if (pFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const Call call(CaptureRule::ALLOWED); call.status() != CUDA_SUCCESS) return call.status();
  if (find(kernel) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pFunc = from_wire<CUfunction>(to_wire(kernel));
  return CUDA_SUCCESS;
}

CUresult func_get_module(CUmodule* hmod, CUfunction hfunc) {
  if (hmod == nullptr || hfunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Function* const function = find(hfunc);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Module* const module = tables().modules.find(function->module);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (module->is_library) return library_get_module(hmod, from_wire<CUlibrary>(module->handle));
  *hmod = from_wire<CUmodule>(module->handle);
  return CUDA_SUCCESS;
}

CUresult func_get_attribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;  // even after an error that stays
  if (const CUresult lasting = Session::get().lasting_error()) return lasting;
  return get_attribute(pi, attrib, find(hfunc));
}
CUresult kernel_get_attribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  if (Session::get().find_device(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return get_attribute(pi, attrib, find(kernel));
}
CUresult func_set_attribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return set_attribute(wire::Op::cuFuncSetAttribute, find(hfunc), attrib, value, 0);
}
CUresult kernel_set_attribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  return set_attribute(wire::Op::cuKernelSetAttribute, find(kernel), attrib, val, dev);
}
CUresult func_get_name(const char** name, CUfunction hfunc) {
  return name == nullptr || hfunc == nullptr ? CUDA_ERROR_INVALID_VALUE
                                             : get_name(name, find(hfunc));
}
CUresult kernel_get_name(const char** name, CUkernel hfunc) {
  return name == nullptr || hfunc == nullptr ? CUDA_ERROR_INVALID_VALUE
                                             : get_name(name, find(hfunc));
}
CUresult func_get_param_info(CUfunction func, size_t paramIndex, size_t* paramOffset,
                             size_t* paramSize) {
  if (func == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get_param_info(find(func), paramIndex, paramOffset, paramSize);
}
CUresult kernel_get_param_info(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                               size_t* paramSize) {
  if (kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const Call call(CaptureRule::ALLOWED); call.status() != CUDA_SUCCESS) return call.status();
  return get_param_info(find(kernel), paramIndex, paramOffset, paramSize);
}

CUresult kernel_get_library(CUlibrary* pLib, CUkernel kernel) {
  if (pLib == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Function* const function = find(kernel);
  const Module* const module =
      function == nullptr ? nullptr : tables().modules.find(function->module);
  if (module == nullptr || !module->is_library) return CUDA_ERROR_INVALID_HANDLE;
  *pLib = from_wire<CUlibrary>(module->handle);
  return CUDA_SUCCESS;
}

CUresult func_set_cache_config(CUfunction hfunc, CUfunc_cache config) {
  return set_config(wire::Op::cuFuncSetCacheConfig, find(hfunc), config, 0);
}
CUresult func_set_shared_mem_config(CUfunction hfunc, CUsharedconfig config) {
  return set_config(wire::Op::cuFuncSetSharedMemConfig, find(hfunc), config, 0);
}
CUresult kernel_set_cache_config(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  return set_config(wire::Op::cuKernelSetCacheConfig, find(kernel), config, dev);
}

CUresult func_load(CUfunction function) {
  const Call call(CaptureRule::ALLOWED, context_of(find(function)));
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return call.sync(wire::Op::cuFuncLoad, wire::FunctionRef{call.context(), to_wire(function)});
}

CUresult func_is_loaded(CUfunctionLoadingState* state, CUfunction function) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED, context_of(find(function)));
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  wire::FunctionState out;
  const wire::FunctionRef body{call.context(), to_wire(function)};
  const CUresult result = call.sync(wire::Op::cuFuncIsLoaded, body, &out);
  if (result == CUDA_SUCCESS) *state = static_cast<CUfunctionLoadingState>(out.state);
  return result;
}

}  // namespace kvgpu::guest
