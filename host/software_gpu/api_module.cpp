// SPDX-License-Identifier: Apache-2.0
// Modules, libraries, and what can be asked of kernels.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "api.h"
#include "fatbin.h"
#include "log.h"
#include "module_loader.h"
#include "texture_reference.h"

using namespace software_gpu;

namespace {

constexpr int MAX_SHARED_BYTES = 163 << 10;

/// Put `text` into the caller's JIT log buffer, if it gave one, and state how much was written.
void write_jit_log(const std::string& text, unsigned n_options, CUjit_option* options,
                   void** values, bool is_error) {
  const CUjit_option buffer = is_error ? CU_JIT_ERROR_LOG_BUFFER : CU_JIT_INFO_LOG_BUFFER;
  const CUjit_option size =
      is_error ? CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES : CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES;
  char* to = nullptr;
  void** n_bytes = nullptr;
  for (unsigned i = 0; i < n_options; ++i) {
    if (options[i] == buffer) to = static_cast<char*>(values[i]);
    if (options[i] == size) n_bytes = &values[i];
  }
  if (!to || !n_bytes) return;
  const size_t room = static_cast<unsigned>(reinterpret_cast<uintptr_t>(*n_bytes));
  size_t written = 0;
  if (room != 0) written = std::min(text.size(), room - 1);
  if (room != 0) {
    memcpy(to, text.data(), written);
    to[written] = 0;
  }
  *n_bytes = reinterpret_cast<void*>(static_cast<uintptr_t>(written));
}

/// Modules need a context without an error; a library does not.
CUresult load_context(bool is_library, Context** context) {
  if (!is_library) return enter(context);
  RETURN_IF_FAILED(enter_without_context());
  *context = &any_context();
  return CUDA_SUCCESS;
}

CUresult load(const void* image, unsigned n_options, CUjit_option* options, void** values,
              bool is_library, LoadedModule** out) {
  Context* context;
  RETURN_IF_FAILED(load_context(is_library, &context));
  if (n_options != 0 && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
  std::string text, error;
  RETURN_IF_FAILED(fatbin::extract_ptx(image, fatbin::UNKNOWN_BYTES, is_library, &text));
  std::unique_ptr<Module> module;
  const CUresult result = load_module(text, context->device.memory, &module, &error);
  write_jit_log(error.empty() ? "" : "kvgpu software GPU: " + error, n_options, options, values,
                true);
  write_jit_log("", n_options, options, values, false);
  if (result != CUDA_SUCCESS) {
    if (!error.empty())
      report(CU_LOG_LEVEL_ERROR, "kvgpu software GPU: cannot load this PTX: " + error);
    return result;
  }
  auto loaded = std::make_shared<LoadedModule>();
  loaded->context = context;
  loaded->is_library = is_library;
  loaded->memory = &context->device.memory;
  loaded->module = std::move(module);
  for (const auto& [name, function] : loaded->module->functions) {
    if (!function->is_entry) continue;
    auto kernel = std::make_shared<Kernel>();
    kernel->owner = loaded.get();
    kernel->function = function.get();
    kernel->max_dynamic_shared_bytes =
        std::max(0, (48 << 10) - static_cast<int>(function->shared_bytes));
    loaded->kernels[name] = kernel;
    Driver::instance().kernels.add(kernel);
  }
  add_references(*loaded);
  *out = loaded.get();
  Driver::instance().modules.add(std::move(loaded));
  return CUDA_SUCCESS;
}

CUresult unload(const void* handle) {
  RETURN_IF_FAILED(enter_without_context());
  Driver& driver = Driver::instance();
  const auto module = driver.modules.find(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  Context* const context = module->context;
  if (!module->is_library) RETURN_IF_FAILED(context->sticky_error());
  RETURN_IF_FAILED(check_capture_safe(*context));
  context->drain();
  context->printed.flush();
  if (!driver.modules.take(handle)) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& [name, kernel] : module->kernels) driver.kernels.take(kernel.get());
  forget_references(*module);
  return CUDA_SUCCESS;
}

CUresult find_kernel(const void* handle, const char* name, Kernel** kernel) {
  RETURN_IF_FAILED(enter_without_context());
  const auto module = Driver::instance().modules.find(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!name || (!*name && !module->is_library)) return CUDA_ERROR_INVALID_VALUE;
  const auto found = module->kernels.find(std::string_view(name));
  if (found == module->kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *kernel = found->second.get();
  return CUDA_SUCCESS;
}

CUresult find_global(const void* handle, const char* name, CUdeviceptr* pointer, size_t* n_bytes) {
  RETURN_IF_FAILED(enter_without_context());
  const auto module = Driver::instance().modules.find(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!name || !*name || (!pointer && !n_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto found = module->module->globals.find(std::string_view(name));
  if (found == module->module->globals.end()) return CUDA_ERROR_NOT_FOUND;
  if (pointer) *pointer = found->second.address;
  if (n_bytes) *n_bytes = found->second.size_bytes;
  return CUDA_SUCCESS;
}

CUresult get_attribute(int* value, CUfunction_attribute attribute, const void* handle) {
  RETURN_IF_FAILED(enter_without_context());
  const auto kernel = Driver::instance().kernels.find(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const Function& function = *kernel->function;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(function.max_threads);
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(function.shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = static_cast<int>(kernel->owner->module->constant_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(function.local_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = static_cast<int>(std::clamp(function.n_registers, 8u, 255u));
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 80;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = kernel->max_dynamic_shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = kernel->preferred_carveout;
      break;
    default:
      if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
      *value = 0;  // no clusters here
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunction_attribute attribute, int value, const void* handle) {
  RETURN_IF_FAILED(enter_without_context());
  const auto kernel = Driver::instance().kernels.find(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value < 0 || value > MAX_SHARED_BYTES - static_cast<int>(kernel->function->shared_bytes))
      return CUDA_ERROR_INVALID_VALUE;
    kernel->max_dynamic_shared_bytes = value;
    return CUDA_SUCCESS;
  }
  if (attribute != CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT || value < -1 || value > 100)
    return CUDA_ERROR_INVALID_VALUE;
  kernel->preferred_carveout = value;
  return CUDA_SUCCESS;
}

/// What has no effect here. Enumerators are compared as ints, which lets negative ones pass.
CUresult set_config(const void* handle, unsigned config, unsigned last) {
  if (!Driver::instance().kernels.find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  return config <= last ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult get_name(const char** name, const void* handle) {
  RETURN_IF_FAILED(enter_without_context());
  if (!name || !handle) return CUDA_ERROR_INVALID_VALUE;
  const auto kernel = Driver::instance().kernels.find(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->function->name.c_str();
  return CUDA_SUCCESS;
}

CUresult get_parameter(const void* handle, size_t index, size_t* offset, size_t* n_bytes) {
  RETURN_IF_FAILED(enter_without_context());
  const auto kernel = Driver::instance().kernels.find(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!offset || index >= kernel->function->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->function->parameters[index].offset_bytes;
  if (n_bytes) *n_bytes = kernel->function->parameters[index].size_bytes;
  return CUDA_SUCCESS;
}

template <class Handle>
CUresult give(CUresult result, const void* object, Handle* out) {
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<Handle>(const_cast<void*>(object));
  return result;
}

}  // namespace

SOFTWARE_GPU_API cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned n,
                                    CUjit_option* options, void** values) {
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  LoadedModule* loaded = nullptr;
  const CUresult result = load(image, n, options, values, false, &loaded);
  return give(result, loaded, module);
}
SOFTWARE_GPU_API cuModuleLoadData(CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}
SOFTWARE_GPU_API cuModuleUnload(CUmodule module) { return unload(module); }
SOFTWARE_GPU_API cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  RETURN_IF_FAILED(enter_without_error());
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  Kernel* kernel = nullptr;
  const CUresult result = find_kernel(module, name, &kernel);
  return give(result, kernel, function);
}
SOFTWARE_GPU_API cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* n_bytes, CUmodule module,
                                      const char* name) {
  RETURN_IF_FAILED(enter_without_error());
  return find_global(module, name, pointer, n_bytes);
}

SOFTWARE_GPU_API cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* options,
                                   void** values, unsigned n, CUlibraryOption*, void**, unsigned) {
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  LoadedModule* loaded = nullptr;
  const CUresult result = load(image, n, options, values, true, &loaded);
  return give(result, loaded, library);
}
SOFTWARE_GPU_API cuLibraryUnload(CUlibrary library) { return unload(library); }
SOFTWARE_GPU_API cuLibraryGetKernel(CUkernel* out, CUlibrary library, const char* name) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Kernel* kernel = nullptr;
  const CUresult result = find_kernel(library, name, &kernel);
  return give(result, kernel, out);
}
SOFTWARE_GPU_API cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* n_bytes, CUlibrary library,
                                    const char* name) {
  RETURN_IF_FAILED(enter_without_error());
  return find_global(library, name, pointer, n_bytes);
}
SOFTWARE_GPU_API cuLibraryGetManaged(CUdeviceptr* pointer, size_t* n_bytes, CUlibrary library,
                                     const char* name) {
  CUdeviceptr found = 0;
  RETURN_IF_FAILED(find_global(library, name, &found, n_bytes));
  const auto allocation = Driver::instance().find(found);
  if (!allocation || allocation->kind != MemoryKind::MANAGED) return CUDA_ERROR_NOT_FOUND;
  if (pointer) *pointer = found;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  RETURN_IF_FAILED(enter_without_error());
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  if (!Driver::instance().modules.find(library)) return CUDA_ERROR_INVALID_HANDLE;
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  RETURN_IF_FAILED(enter_without_context());
  const auto module = Driver::instance().modules.find(library);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(module->kernels.size());
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuLibraryEnumerateKernels(CUkernel* kernels, unsigned n, CUlibrary library) {
  RETURN_IF_FAILED(enter_without_context());
  const auto module = Driver::instance().modules.find(library);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!kernels) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& [name, kernel] : module->kernels) {
    if (n-- == 0) break;
    *kernels++ = reinterpret_cast<CUkernel>(kernel.get());
  }
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  if (!Driver::instance().kernels.find(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                      CUdevice device) {
  Device* found;
  RETURN_IF_FAILED(find(device, &found));
  return get_attribute(value, attribute, kernel);
}
SOFTWARE_GPU_API cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                      CUdevice device) {
  Device* found;
  RETURN_IF_FAILED(find(device, &found));
  return set_attribute(attribute, value, kernel);
}
SOFTWARE_GPU_API cuKernelGetName(const char** name, CUkernel kernel) {
  return get_name(name, kernel);
}
SOFTWARE_GPU_API cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset,
                                      size_t* n_bytes) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  return get_parameter(kernel, index, offset, n_bytes);
}
SOFTWARE_GPU_API cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                    CUfunction function) {
  RETURN_IF_FAILED(enter_without_context());
  if (!value) return CUDA_ERROR_INVALID_VALUE;  // as on driver 580 even in a broken context
  RETURN_IF_FAILED(enter_without_error());
  return get_attribute(value, attribute, function);
}
SOFTWARE_GPU_API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                                    int value) {
  RETURN_IF_FAILED(enter_without_error());
  return set_attribute(attribute, value, function);
}
SOFTWARE_GPU_API cuFuncGetName(const char** name, CUfunction function) {
  RETURN_IF_FAILED(enter_without_error());
  return get_name(name, function);
}
SOFTWARE_GPU_API cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset,
                                    size_t* n_bytes) {
  RETURN_IF_FAILED(enter_without_error());
  return get_parameter(function, index, offset, n_bytes);
}
SOFTWARE_GPU_API cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  RETURN_IF_FAILED(enter_without_error());
  return set_config(function, config, CU_FUNC_CACHE_PREFER_EQUAL);
}
SOFTWARE_GPU_API cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config) {
  RETURN_IF_FAILED(enter_without_error());
  return set_config(function, config, CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
}
SOFTWARE_GPU_API cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  Device* found;
  RETURN_IF_FAILED(find(device, &found));
  return set_config(kernel, config, CU_FUNC_CACHE_PREFER_EQUAL);
}
SOFTWARE_GPU_API cuFuncLoad(CUfunction function) {
  RETURN_IF_FAILED(enter_without_error());
  return Driver::instance().kernels.find(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
SOFTWARE_GPU_API cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  RETURN_IF_FAILED(enter_without_error());
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  if (!Driver::instance().kernels.find(function)) return CUDA_ERROR_INVALID_HANDLE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  RETURN_IF_FAILED(enter_without_error());
  return cuLibraryGetKernelCount(count, reinterpret_cast<CUlibrary>(module));
}
SOFTWARE_GPU_API cuModuleEnumerateFunctions(CUfunction* functions, unsigned n, CUmodule module) {
  RETURN_IF_FAILED(enter_without_error());
  return cuLibraryEnumerateKernels(reinterpret_cast<CUkernel*>(functions), n,
                                   reinterpret_cast<CUlibrary>(module));
}
