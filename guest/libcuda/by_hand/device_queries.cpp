// SPDX-License-Identifier: Apache-2.0
// What is seldom asked of devices.
#include <algorithm>
#include <vector>

#include "call.h"
#include "generated/api.gen.h"
#include "kvgpu/context_calls.h"

namespace kvgpu::guest {

CUresult device_total_mem(unsigned int* bytes, CUdevice dev) {
  size_t all = 0;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = device_total_mem_v2(&all, dev)) return bad;
  *bytes = static_cast<unsigned>(std::min<size_t>(all, UINT32_MAX));
  return CUDA_SUCCESS;
}

CUresult device_get_properties(CUdevprop* prop, CUdevice dev) {
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult error = CUDA_SUCCESS;
  const auto get = [&](CUdevice_attribute id) {
    int value = 0;
    if (error == CUDA_SUCCESS) error = device_get_attribute(&value, id, dev);
    return value;
  };
  const CUdevprop found{
      get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
      {get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X), get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
       get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)},
      {get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X), get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
       get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)},
      get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
      get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
      get(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
      get(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
      get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
      get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
      get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT)};
  if (error == CUDA_SUCCESS) *prop = found;
  return error;
}

CUresult device_get_host_atomic_capabilities(unsigned int* capabilities,
                                             const CUatomicOperation* operations,
                                             unsigned int count, CUdevice dev) {
  if (const CUresult bad = Session::get().pending_error()) return bad;
  if (Session::get().find_device(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (capabilities == nullptr || operations == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned at = 0; at < count; at += wire::MAX_ATOMIC_OPERATIONS) {
    const uint32_t n = std::min(count - at, wire::MAX_ATOMIC_OPERATIONS);
    std::vector<uint32_t> wanted(operations + at, operations + at + n), found(n);
    const auto bytes = static_cast<uint32_t>(n * sizeof(uint32_t));
    const wire::AtomicCapabilities body{static_cast<uint32_t>(dev), n};
    ReplyBuffer out{found.data(), bytes};
    const CUresult bad = Session::get().call(wire::Op::cuDeviceGetHostAtomicCapabilities, dev, &out,
                                             part(body), Part{wanted.data(), bytes});
    if (bad != CUDA_SUCCESS) return bad;
    std::copy(found.begin(), found.end(), capabilities + at);
  }
  return CUDA_SUCCESS;
}

// As on any device that shares no functions with the host, whatever the name.
CUresult library_get_unified_function(void**, CUlibrary library, const char*) {
  const Call call(CaptureRule::ALLOWED, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Module* const module = find(library);
  const bool is_library = module != nullptr && module->is_library;
  return is_library ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace kvgpu::guest
