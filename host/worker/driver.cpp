// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <dlfcn.h>

#include <type_traits>

namespace kvgpu::worker {

bool load_driver(const char* path, DriverTable* table, std::string* error) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    *error = std::string("cannot load the driver library: ") + (why ? why : path);
    return false;
  }
  table->fill([library](const char* name) { return dlsym(library, name); });
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
  };
  find(table->ipc.descriptor_of, "kvgpu_ipc_descriptor_of");
  find(table->ipc.offer, "kvgpu_ipc_offer");
  if (!table->has(table->cuInit) || !table->has(table->cuLaunchKernel)) {
    *error = std::string(path) + " is not a CUDA driver library (no cuInit)";
    return false;
  }
  return true;
}

std::string error_name(const DriverTable& driver, CUresult error) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(error, &name) != CUDA_SUCCESS) {
    name = "CUDA error";
  }
  return std::string(name) + " (" + std::to_string(static_cast<int>(error)) + ")";
}

bool is_sticky(CUresult error) {
  switch (error) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_EXTERNAL_DEVICE:
      return true;
    default:
      return false;
  }
}

}  // namespace kvgpu::worker
