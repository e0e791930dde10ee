// SPDX-License-Identifier: Apache-2.0
// Modules, libraries, kernels. What programs ask about a kernel comes with it and is answered here.
#include <cstring>
#include <string_view>

#include "call.h"
#include "generated/api.gen.h"
#include "image.h"
#include "memory_map.h"
#include "refuse.h"
#include "staging.h"

namespace kvgpu::guest {

namespace {

CUresult upload(const Call& call, const ImageBytes& image, wire::Handle* blob) {
  static std::atomic<uint32_t> next_blob{1};
  const uint32_t number = next_blob++;
  *blob = wire::make_handle(wire::Kind::BLOB, 0, number % wire::MAX_HANDLE_INDEX,
                            number / wire::MAX_HANDLE_INDEX);
  Staging& staging = Staging::get();
  for (uint64_t offset = 0; offset < image.bytes;) {
    const uint64_t n = std::min<uint64_t>(image.bytes - offset, Staging::CHUNK_BYTES);
    Staging::Piece piece;
    if (const CUresult bad = staging.allocate(n, &piece)) return bad;
    std::memcpy(staging.data(piece), image.data + offset, n);
    const CUresult result =
        call.sync(wire::Op::UPLOAD, wire::Upload{*blob, image.bytes, offset, piece.off, n});
    staging.release(piece);
    if (result != CUDA_SUCCESS) return result;
    offset += n;
  }
  return CUDA_SUCCESS;
}

CUresult load(wire::Op op, const void* image_pointer, bool is_library, wire::Handle* handle) {
  const Call call(CaptureRule::FORBIDDEN, nullptr,
                  is_library ? ContextRule::OPTIONAL : ContextRule::NEEDED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto image = measure_image(image_pointer);
  if (!image) return CUDA_ERROR_INVALID_IMAGE;
  wire::Handle blob;
  if (const CUresult bad = upload(call, *image, &blob)) return bad;
  Module* const module = tables().modules.create();
  if (module == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  module->is_library = is_library;
  if (!is_library) module->context = &call.context_object();
  wire::LoadedImage out;
  const CUresult result =
      call.sync(op, wire::LoadImage{call.context(), blob, module->handle}, &out);
  if (result != CUDA_SUCCESS) {
    tables().modules.remove(module->handle);
    return result;
  }
  if (out.prints) Session::get().prints.store(true, std::memory_order_relaxed);
  *handle = module->handle;
  return CUDA_SUCCESS;
}

struct Description {
  wire::FunctionInfo info;
  wire::ParamInfo params[1024];
};

void adopt(Function& function, const Description& description) {
  for (uint32_t i = 0; i < wire::N_FUNCTION_ATTRIBUTES; ++i) {
    function.attributes[i] = description.info.attributes[i];
  }
  const size_t n = std::min(size_t{description.info.n_params}, std::size(description.params));
  function.params.assign(description.params, description.params + n);
  for (const wire::ParamInfo& param : function.params) {
    function.param_bytes = std::max(function.param_bytes, param.offset + param.bytes);
  }
  function.described.store(true, std::memory_order_release);
}

CUresult get_function(wire::Op op, Module* module, const char* name, wire::Handle* handle) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, module->context,
                  module->is_library ? ContextRule::OPTIONAL : ContextRule::NEEDED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const std::lock_guard lock(module->mutex);
  if (const auto known = module->functions.find(name); known != module->functions.end()) {
    *handle = known->second;
    return CUDA_SUCCESS;
  }
  Function* const function = tables().functions.create();
  if (function == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto name_bytes = static_cast<uint32_t>(std::strlen(name));
  const wire::GetFunction body{call.context(), module->handle, function->handle, name_bytes, 0};
  Description out;
  ReplyBuffer reply{&out, sizeof out};
  const CUresult result =
      Session::get().call(op, call.device(), &reply, part(body), Part{name, name_bytes});
  if (result != CUDA_SUCCESS) {
    tables().functions.remove(function->handle);
    return result;
  }
  function->module = module->handle;
  function->name = name;
  if (reply.len_bytes >= sizeof out.info) adopt(*function, out);
  module->functions.emplace(name, function->handle);
  *handle = function->handle;
  return CUDA_SUCCESS;
}

CUresult get_global(wire::Op op, Module* module, const char* name, CUdeviceptr* dptr,
                    size_t* bytes) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, module->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto name_bytes = static_cast<uint32_t>(std::strlen(name));
  wire::Global out;
  const wire::GetGlobal body{call.context(), module->handle, name_bytes, 0};
  const CUresult result = call.sync(op, body, &out, {name, name_bytes});
  if (result != CUDA_SUCCESS) return result;
  memory_map().add(
      {out.dptr, out.bytes, MemoryKind::GLOBAL, &call.context_object(), 0, 0, module->handle});
  if (dptr != nullptr) *dptr = out.dptr;
  if (bytes != nullptr) *bytes = out.bytes;
  return CUDA_SUCCESS;
}

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

CUresult set_attribute(wire::Op op, Function* function, CUfunction_attribute attribute, int value,
                       int device) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const wire::SetAttribute body{call.context(), function->handle, attribute, value, device, 0};
  const CUresult result = call.sync(op, body);
  if (result == CUDA_SUCCESS && function->described && attribute >= 0 &&
      attribute < static_cast<int>(wire::N_FUNCTION_ATTRIBUTES)) {
    function->attributes[attribute].store(value, std::memory_order_relaxed);
  }
  return result;
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
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

}  // namespace

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

CUresult library_load_data(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned int numJitOptions, CUlibraryOption* libraryOptions, void**,
                           unsigned int numLibraryOptions) {
  if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (numJitOptions != 0) {
    return static_cast<CUresult>(refuse_part("cuLibraryLoadData with JIT options"));
  }
  for (unsigned i = 0; i < numLibraryOptions; ++i) {
    // The image is copied in any case.
    if (libraryOptions[i] != CU_LIBRARY_BINARY_IS_PRESERVED) {
      return static_cast<CUresult>(refuse_part("a library option of cuLibraryLoadData"));
    }
  }
  wire::Handle handle;
  const CUresult result = load(wire::Op::cuLibraryLoadData, code, true, &handle);
  if (result == CUDA_SUCCESS) *library = from_wire<CUlibrary>(handle);
  return result;
}

CUresult module_load_data(CUmodule* module, const void* image) {
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::Handle handle;
  const CUresult result = load(wire::Op::cuModuleLoadData, image, false, &handle);
  if (result == CUDA_SUCCESS) *module = from_wire<CUmodule>(handle);
  return result;
}

CUresult module_load_data_ex(CUmodule* module, const void* image, unsigned int numOptions,
                             CUjit_option*, void**) {
  if (numOptions != 0)
    return static_cast<CUresult>(refuse_part("cuModuleLoadDataEx with JIT options"));
  return module_load_data(module, image);
}

CUresult library_get_kernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  if (pKernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::Handle handle;
  const CUresult result = get_function(wire::Op::cuLibraryGetKernel, find(library), name, &handle);
  if (result == CUDA_SUCCESS) *pKernel = from_wire<CUkernel>(handle);
  return result;
}

CUresult module_get_function(CUfunction* hfunc, CUmodule hmod, const char* name) {
  if (hfunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::Handle handle;
  const CUresult result = get_function(wire::Op::cuModuleGetFunction, find(hmod), name, &handle);
  if (result == CUDA_SUCCESS) *hfunc = from_wire<CUfunction>(handle);
  return result;
}

CUresult library_get_global(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  return get_global(wire::Op::cuLibraryGetGlobal, find(library), name, dptr, bytes);
}
CUresult module_get_global_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  return get_global(wire::Op::cuModuleGetGlobal_v2, find(hmod), name, dptr, bytes);
}

CUresult library_get_module(CUmodule* pMod, CUlibrary library) {
  if (pMod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  Module* const owner = find(library);
  if (owner == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(owner->mutex);
  if (owner->module_of_library == 0) {
    Module* const module = tables().modules.create();
    if (module == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    const wire::LibraryModule body{call.context(), owner->handle, module->handle};
    if (const CUresult bad = call.sync(wire::Op::cuLibraryGetModule, body)) {
      tables().modules.remove(module->handle);
      return bad;
    }
    owner->module_of_library = module->handle;
  }
  *pMod = from_wire<CUmodule>(owner->module_of_library);
  return CUDA_SUCCESS;
}

// A kernel serves as its function: the worker's driver takes either.
CUresult kernel_get_function(CUfunction* pFunc, CUkernel kernel) {
  if (pFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (find(kernel) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pFunc = from_wire<CUfunction>(to_wire(kernel));
  return CUDA_SUCCESS;
}

CUresult func_get_module(CUmodule* hmod, CUfunction hfunc) {
  if (hmod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Function* const function = find(hfunc);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Module* const module = tables().modules.find(function->module);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (module->is_library) return library_get_module(hmod, from_wire<CUlibrary>(module->handle));
  *hmod = from_wire<CUmodule>(module->handle);
  return CUDA_SUCCESS;
}

CUresult func_get_attribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  return get_attribute(pi, attrib, find(hfunc));
}
CUresult kernel_get_attribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  if (dev < 0 || static_cast<size_t>(dev) >= Session::get().devices().size()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  return get_attribute(pi, attrib, find(kernel));
}
CUresult func_set_attribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return set_attribute(wire::Op::cuFuncSetAttribute, find(hfunc), attrib, value, 0);
}
CUresult kernel_set_attribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  return set_attribute(wire::Op::cuKernelSetAttribute, find(kernel), attrib, val, dev);
}
CUresult func_get_name(const char** name, CUfunction hfunc) { return get_name(name, find(hfunc)); }
CUresult kernel_get_name(const char** name, CUkernel hfunc) { return get_name(name, find(hfunc)); }
CUresult func_get_param_info(CUfunction func, size_t paramIndex, size_t* paramOffset,
                             size_t* paramSize) {
  return get_param_info(find(func), paramIndex, paramOffset, paramSize);
}
CUresult kernel_get_param_info(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                               size_t* paramSize) {
  return get_param_info(find(kernel), paramIndex, paramOffset, paramSize);
}

}  // namespace kvgpu::guest
