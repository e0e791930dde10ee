// SPDX-License-Identifier: Apache-2.0
// Modules, libraries, and what is looked up in them.
#include <algorithm>
#include <cstring>

#include "address_space.h"
#include "call.h"
#include "description.h"
#include "generated/api.gen.h"
#include "log.h"
#include "managed_memory.h"
#include "memory_map.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

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
  function->prints = module->prints;
  function->name = name;
  if (reply.len_bytes >= sizeof out.info) adopt(*function, out);
  module->functions.emplace(name, function->handle);
  *handle = function->handle;
  return CUDA_SUCCESS;
}

CUresult adopt_global(const Call& call, const Module& module, const wire::Global& global) {
  Context& context = call.context_object();
  auto kind = MemoryKind::GLOBAL;
  if (global.is_managed != 0) {
    kind = MemoryKind::MANAGED;
    if (const CUresult bad = ManagedMemory::prepare(context)) return bad;
    if (!ManagedMemory::get().add_variable(context, module.handle, global.dptr, global.bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  } else if (!keep_for_devices(global.dptr, global.bytes)) {
    log(Level::WARNING,
        "the device address 0x%llx is not free in this process: a variable is refused",
        static_cast<unsigned long long>(global.dptr));
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  memory_map().add({global.dptr, global.bytes, kind, &context, 0, 0, module.handle});
  return CUDA_SUCCESS;
}

CUresult get_global(wire::Op op, Module* module, const char* name, CUdeviceptr* dptr,
                    size_t* bytes) {
  if (name == nullptr || (module != nullptr && module->is_library && name[0] == '\0')) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = module->context;
  if (op == wire::Op::cuLibraryGetManaged && current_context() == nullptr) {
    // One for all contexts; but something must move its pages.
    context = Session::get().devices().front().primary;
    if (const CUresult bad = wake_primary(*context)) return bad;
  }
  const Call call(CaptureRule::ALLOWED, context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto name_bytes = static_cast<uint32_t>(std::strlen(name));
  wire::Global out;
  const wire::GetGlobal body{call.context(), module->handle, name_bytes, 0};
  const CUresult result = call.sync(op, body, &out, {name, name_bytes});
  if (result != CUDA_SUCCESS) return result;
  if (const CUresult bad = adopt_global(call, *module, out)) return bad;
  if (dptr != nullptr) *dptr = out.dptr;
  if (bytes != nullptr) *bytes = out.bytes;
  return CUDA_SUCCESS;
}

// The names of a module's functions: in several replies where they do not fit into one.
CUresult list_functions(const Call& call, wire::Op op, const Module& module,
                        std::vector<std::string>* names) {
  struct {
    wire::FunctionNames head;
    char text[wire::MAX_RECORD_BYTES];
  } out;
  uint32_t n_all = 0;
  do {
    ReplyBuffer reply{&out, sizeof out};
    const wire::ListFunctions body{call.context(), module.handle, names->size()};
    const CUresult result = Session::get().call(op, call.device(), &reply, part(body));
    if (result != CUDA_SUCCESS) return result;
    if (reply.len_bytes < sizeof out.head) return CUDA_ERROR_UNKNOWN;
    n_all = out.head.n_all;
    const char* at = out.text;
    size_t left = std::min(reply.len_bytes - sizeof out.head, sizeof out.text);
    for (uint32_t i = 0; i < out.head.n && left > 0; ++i) {
      names->emplace_back(at, strnlen(at, left));
      const size_t taken = std::min(names->back().size() + 1, left);
      at += taken;
      left -= taken;
    }
    if (out.head.n == 0) break;
  } while (names->size() < n_all);
  return CUDA_SUCCESS;
}

template <typename Handle>
CUresult enumerate(Handle* handles, unsigned n, Module* module, wire::Op list, wire::Op get) {
  if (handles == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, module->context,
                  module->is_library ? ContextRule::OPTIONAL : ContextRule::NEEDED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  std::vector<std::string> names;
  if (const CUresult bad = list_functions(call, list, *module, &names)) return bad;
  for (size_t i = 0; i < names.size() && i < n; ++i) {
    wire::Handle handle;
    if (const CUresult bad = get_function(get, module, names[i].c_str(), &handle)) return bad;
    handles[i] = from_wire<Handle>(handle);
  }
  return CUDA_SUCCESS;
}

}  // namespace

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

CUresult library_get_managed(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                             const char* name) {
  return get_global(wire::Op::cuLibraryGetManaged, find(library), name, dptr, bytes);
}

CUresult library_get_module(CUmodule* pMod, CUlibrary library) {
  if (pMod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED);
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
    module->prints = owner->prints;
    owner->module_of_library = module->handle;
  }
  *pMod = from_wire<CUmodule>(owner->module_of_library);
  return CUDA_SUCCESS;
}

CUresult module_enumerate_functions(CUfunction* functions, unsigned int numFunctions,
                                    CUmodule mod) {
  return enumerate(functions, numFunctions, find(mod), wire::Op::cuModuleEnumerateFunctions,
                   wire::Op::cuModuleGetFunction);
}
CUresult library_enumerate_kernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  return enumerate(kernels, numKernels, find(lib), wire::Op::cuLibraryEnumerateKernels,
                   wire::Op::cuLibraryGetKernel);
}

}  // namespace kvgpu::guest
