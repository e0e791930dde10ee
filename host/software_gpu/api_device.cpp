// SPDX-License-Identifier: Apache-2.0
// Devices and their attributes. Attributes tell the truth about this implementation: limits that it
// holds, 0 for what it does not do.
#include <cstdio>
#include <cstring>

#include "api.h"
#include "engine.h"

using namespace software_gpu;

namespace {

constexpr char NAME[] = "kvgpu software GPU";

int attribute_value(CUdevice_attribute attribute, int ordinal) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return INT32_MAX;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return INT32_MAX;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return 1'000'000;  // kHz: %clock counts nanoseconds
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return static_cast<int>(n_cores());
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
      return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return CU_COMPUTEMODE_DEFAULT;
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
      return 1;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      return ordinal;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return 1'000'000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 2;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      return 1;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      return 32;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 8;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
      return 0;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return 164 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      return 1;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 163 << 10;
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return MAX_BLOCKS_PER_CORE;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:
      return 1;
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
      return -1;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      return -1;
    default:
      return 0;
  }
}

CUresult find(CUdevice ordinal, Device** device) {
  RETURN_IF_FAILED(enter_without_context());
  *device = Driver::instance().device(ordinal);
  return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

SOFTWARE_GPU_API cuDeviceGet(CUdevice* device, int ordinal) {
  Device* found;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find(ordinal, &found));
  *device = ordinal;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetCount(int* count) {
  RETURN_IF_FAILED(enter_without_context());
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(Driver::instance().devices.size());
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetName(char* name, int n_bytes, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!name || n_bytes < 1) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, static_cast<size_t>(n_bytes), "%s", NAME);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = device->memory.total_bytes();
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  // 92 to 94 and 121 are ids of withdrawn attributes; they still have an answer, as natively.
  if (!value || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  *value = attribute_value(attribute, ordinal);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  memcpy(uuid->bytes, "kvgpu-software\0", 15);
  uuid->bytes[15] = static_cast<char>(ordinal);
  return CUDA_SUCCESS;
}

#undef cuDeviceGetUuid
SOFTWARE_GPU_API cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) {
  return cuDeviceGetUuid_v2(uuid, ordinal);
}

SOFTWARE_GPU_API cuDeviceGetPCIBusId(char* text, int n_bytes, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!text || n_bytes < 13) return CUDA_ERROR_INVALID_VALUE;
  snprintf(text, static_cast<size_t>(n_bytes), "0000:00:%02X.0", ordinal);
  return CUDA_SUCCESS;
}
