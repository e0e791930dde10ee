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

struct Attribute {
  CUdevice_attribute id;
  int value;
};

// CLOCK_RATE is in kHz: %clock counts nanoseconds.
constexpr Attribute ATTRIBUTES[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1'000'000},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1'000'000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 164 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 163 << 10},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, MAX_BLOCKS_PER_CORE},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1},
};

int attribute_value(CUdevice_attribute id, const Device& device) {
  if (id == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) return static_cast<int>(n_cores());
  if (id == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) return device.unit;
  for (const Attribute& attribute : ATTRIBUTES)
    if (attribute.id == id) return attribute.value;
  return image_limit(
      id);  // 0: what this implementation does not do, and attributes that were withdrawn
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
  if (!value || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  *value = attribute_value(attribute, *device);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  memcpy(uuid->bytes, "kvgpu-software\0", 15);
  uuid->bytes[15] = static_cast<char>(device->unit);
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
  snprintf(text, static_cast<size_t>(n_bytes), "0000:00:%02X.0", device->unit);
  return CUDA_SUCCESS;
}
