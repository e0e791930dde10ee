// SPDX-License-Identifier: Apache-2.0
// Modules, libraries and their functions. What programs ask about a function is sent with it.
#include <cstring>
#include <string>

#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/module_calls.h"
#include "loaded.h"
#include "record_name.h"

namespace kvgpu::worker {

namespace {

// Of a kernel of a module or a library.
wire::Printing printing_of(const Session& session, wire::Handle module, const std::string& kernel) {
  // Nothing else is kept with a handle of this kind.
  const auto loaded = std::static_pointer_cast<const Loaded>(session.handles.kept_with(module));
  if (loaded == nullptr) return wire::Printing::NOT_SAID;
  return loaded->printers.has(kernel) ? wire::Printing::MAY : wire::Printing::CANNOT;
}

template <typename ParamInfo, typename Attribute>
void describe_function(ReplyWriter& reply, wire::Printing printing, ParamInfo param_info,
                       Attribute attribute) {
  wire::FunctionInfo info{};
  info.printing = printing;
  for (uint32_t id = 0; id < wire::N_FUNCTION_ATTRIBUTES; ++id) {
    int value = 0;
    const bool known = attribute(&value, static_cast<CUfunction_attribute>(id)) == CUDA_SUCCESS;
    info.attributes[id] = known ? value : wire::ATTRIBUTE_UNKNOWN;
  }
  std::vector<wire::ParamInfo> params;
  size_t offset = 0, bytes = 0;
  while (param_info(params.size(), &offset, &bytes) == CUDA_SUCCESS) {
    params.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
  }
  info.n_params = static_cast<uint32_t>(params.size());
  reply.put(info);
  reply.put_bytes(params.data(), params.size() * sizeof(wire::ParamInfo));
}

template <typename Module, typename Get>
CUresult get_global(Session& session, const Task& task, ReplyWriter& reply, Get get) {
  wire::GetGlobal body;
  std::string name;
  if (!task.read(&body) || !read_name(task, body, &name)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  Module module;
  if (!session.handles.get(body.module, &module)) return CUDA_ERROR_INVALID_HANDLE;
  CUdeviceptr dptr = 0;
  size_t bytes = 0;
  if (const CUresult bad = get(&dptr, &bytes, module, name.c_str())) return bad;
  session.add_device_range(dptr, {.bytes = bytes, .context = body.context, .module = body.module});
  unsigned is_managed = 0;
  const CUresult asked =
      session.driver->cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, dptr);
  if (asked != CUDA_SUCCESS) return asked;
  reply.put(wire::Global{dptr, bytes, is_managed});
  return CUDA_SUCCESS;
}

void describe_plain_function(Session& session, CUfunction function, wire::Printing printing,
                             ReplyWriter& reply) {
  const DriverTable& driver = *session.driver;
  describe_function(
      reply, printing,
      [&](size_t i, size_t* offset, size_t* bytes) {
        return driver.cuFuncGetParamInfo(function, i, offset, bytes);
      },
      [&](int* value, CUfunction_attribute id) {
        return driver.cuFuncGetAttribute(value, id, function);
      });
}

// A context must be current: without one the driver tells nothing of a kernel's parameters.
void describe_kernel(Session& session, const Task& task, CUkernel kernel, wire::Printing printing,
                     ReplyWriter& reply) {
  const DriverTable& driver = *session.driver;
  const auto device = static_cast<CUdevice>(wire::target_device(task.header.target));
  describe_function(
      reply, printing,
      [&](size_t i, size_t* offset, size_t* bytes) {
        return driver.cuKernelGetParamInfo(kernel, i, offset, bytes);
      },
      [&](int* value, CUfunction_attribute id) {
        return driver.cuKernelGetAttribute(value, id, kernel, device);
      });
}

}  // namespace

CUresult library_get_kernel(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GetFunction body;
  std::string name;
  if (!task.read(&body) || !read_name(task, body, &name)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  const DriverTable& driver = *session.driver;
  CUlibrary library;
  if (!session.handles.get(body.module, &library)) return CUDA_ERROR_INVALID_HANDLE;
  CUkernel kernel = nullptr;
  if (const CUresult bad = driver.cuLibraryGetKernel(&kernel, library, name.c_str())) return bad;
  if (!session.handles.add(body.function, kernel, body.module)) session.violation(task);
  if (body.context != 0) {
    describe_kernel(session, task, kernel, printing_of(session, body.module, name), reply);
  }
  return CUDA_SUCCESS;
}

CUresult kernel_info(Session& session, const Task& task, ReplyWriter& reply) {
  wire::KernelInfo body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUkernel kernel;
  if (!session.handles.get(body.kernel, &kernel)) return CUDA_ERROR_INVALID_HANDLE;
  const DriverTable& driver = *session.driver;
  const char* name = nullptr;
  auto printing = wire::Printing::NOT_SAID;
  if (driver.has(driver.cuKernelGetName) && driver.cuKernelGetName(&name, kernel) == CUDA_SUCCESS) {
    printing = printing_of(session, session.handles.owner_of(body.kernel), name);
  }
  describe_kernel(session, task, kernel, printing, reply);
  return CUDA_SUCCESS;
}

CUresult module_get_function(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GetFunction body;
  std::string name;
  if (!task.read(&body) || !read_name(task, body, &name)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUmodule module;
  if (!session.handles.get(body.module, &module)) return CUDA_ERROR_INVALID_HANDLE;
  CUfunction function = nullptr;
  const CUresult result = session.driver->cuModuleGetFunction(&function, module, name.c_str());
  if (result != CUDA_SUCCESS) return result;
  if (!session.handles.add(body.function, function, body.module)) session.violation(task);
  describe_plain_function(session, function, printing_of(session, body.module, name), reply);
  return CUDA_SUCCESS;
}

CUresult library_get_global(Session& session, const Task& task, ReplyWriter& reply) {
  return get_global<CUlibrary>(
      session, task, reply,
      [&](CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
        return session.driver->cuLibraryGetGlobal(dptr, bytes, library, name);
      });
}

CUresult library_get_managed(Session& session, const Task& task, ReplyWriter& reply) {
  return get_global<CUlibrary>(
      session, task, reply,
      [&](CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
        return session.driver->cuLibraryGetManaged(dptr, bytes, library, name);
      });
}

CUresult module_get_global_v2(Session& session, const Task& task, ReplyWriter& reply) {
  return get_global<CUmodule>(
      session, task, reply,
      [&](CUdeviceptr* dptr, size_t* bytes, CUmodule module, const char* name) {
        return session.driver->cuModuleGetGlobal_v2(dptr, bytes, module, name);
      });
}

CUresult library_get_module(Session& session, const Task& task, ReplyWriter&) {
  wire::LibraryModule body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUlibrary library;
  if (!session.handles.get(body.library, &library)) return CUDA_ERROR_INVALID_HANDLE;
  CUmodule module = nullptr;
  if (const CUresult bad = session.driver->cuLibraryGetModule(&module, library)) return bad;
  auto loaded = session.handles.kept_with(body.library);
  if (!session.handles.add(body.module, module, body.library, std::move(loaded))) {
    session.violation(task);
  }
  return CUDA_SUCCESS;
}

namespace {

// The names of a module's functions from number `first` on, as many as fit into a reply.
template <typename Function, typename Name>
CUresult list_names(std::span<const Function> functions, uint64_t first, ReplyWriter& reply,
                    Name name_of) {
  constexpr size_t ROOM_BYTES = wire::MAX_RECORD_BYTES - 256;
  std::string names;
  wire::FunctionNames head{static_cast<uint32_t>(functions.size()), 0};
  for (size_t i = first; i < functions.size(); ++i) {
    const char* name = nullptr;
    if (const CUresult bad = name_of(&name, functions[i])) return bad;
    if (names.size() + std::strlen(name) + 1 > ROOM_BYTES) break;
    names.append(name, std::strlen(name) + 1);
    ++head.n;
  }
  reply.put(head);
  reply.put_bytes(names.data(), names.size());
  return CUDA_SUCCESS;
}

}  // namespace

CUresult module_enumerate_functions(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ListFunctions body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUmodule module;
  if (!session.handles.get(body.module, &module)) return CUDA_ERROR_INVALID_HANDLE;
  const DriverTable& driver = *session.driver;
  if (driver.cuModuleEnumerateFunctions == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  unsigned n = 0;
  if (const CUresult bad = driver.cuModuleGetFunctionCount(&n, module)) return bad;
  std::vector<CUfunction> functions(n);
  if (const CUresult bad = driver.cuModuleEnumerateFunctions(functions.data(), n, module)) {
    return bad;
  }
  return list_names<CUfunction>(functions, body.first, reply, driver.cuFuncGetName);
}

CUresult library_enumerate_kernels(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ListFunctions body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUlibrary library;
  if (!session.handles.get(body.module, &library)) return CUDA_ERROR_INVALID_HANDLE;
  const DriverTable& driver = *session.driver;
  if (driver.cuLibraryEnumerateKernels == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  unsigned n = 0;
  if (const CUresult bad = driver.cuLibraryGetKernelCount(&n, library)) return bad;
  std::vector<CUkernel> kernels(n);
  if (const CUresult bad = driver.cuLibraryEnumerateKernels(kernels.data(), n, library)) return bad;
  return list_names<CUkernel>(kernels, body.first, reply, driver.cuKernelGetName);
}

}  // namespace kvgpu::worker
