// SPDX-License-Identifier: Apache-2.0
#include "inventory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace kvgpu::worker {

namespace {

// Features of the device that a remoted program cannot use (yet): the attribute says so.
constexpr CUdevice_attribute NOT_REMOTED[] = {
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH,
    CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
    CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
    CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH,
};

// Of host memory in virtual memory management, which is the worker's own (host_memory.h).
constexpr CUdevice_attribute OWN[] = {
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
};

void read_attributes(const DriverTable& driver, CUdevice device, wire::DeviceInfo* info) {
  for (int id = 0; id < wire::N_DEVICE_ATTRIBUTES; ++id) {
    const auto attribute = static_cast<CUdevice_attribute>(id);
    int value = 0;
    const bool known = driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS;
    const bool hidden = std::find(std::begin(NOT_REMOTED), std::end(NOT_REMOTED), attribute) !=
                        std::end(NOT_REMOTED);
    if (attribute == CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) {
      value &= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    info->attributes[id] = !known ? wire::ATTRIBUTE_UNKNOWN : hidden ? 0 : value;
  }
  for (const CUdevice_attribute own : OWN) {
    info->attributes[own] =
        info->attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED];
  }
}

CUresult describe(const DriverTable& driver, int ordinal, wire::DeviceInfo* info) {
  CUdevice device;
  if (const CUresult bad = driver.cuDeviceGet(&device, ordinal)) return bad;
  if (const CUresult bad = driver.cuDeviceGetName(info->name, sizeof info->name, device))
    return bad;
  size_t total_bytes = 0;
  if (const CUresult bad = driver.cuDeviceTotalMem_v2(&total_bytes, device)) return bad;
  info->total_bytes = total_bytes;
  CUuuid uuid;
  if (const CUresult bad = driver.cuDeviceGetUuid_v2(&uuid, device)) return bad;
  std::memcpy(info->uuid, uuid.bytes, sizeof info->uuid);
  char bus_id[32]{};
  if (const CUresult bad = driver.cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device)) return bad;
  std::memcpy(info->pci_bus_id, bus_id, sizeof info->pci_bus_id - 1);
  read_attributes(driver, device, info);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult list_devices(const DriverTable& driver, std::vector<wire::DeviceInfo>* devices) {
  int n = 0;
  if (const CUresult bad = driver.cuDeviceGetCount(&n)) return bad;
  devices->clear();
  for (int ordinal = 0; ordinal < n; ++ordinal) {
    wire::DeviceInfo info{};
    if (const CUresult bad = describe(driver, ordinal, &info)) return bad;
    devices->push_back(info);
  }
  return CUDA_SUCCESS;
}

// Asked of the driver: read_attributes() hides it from guests. Where it is 1 (HMM, ATS), kernels
// can read all memory of their worker, and kvgpud refuses VMs.
static bool reaches_pageable_memory(const DriverTable& driver, int ordinal) {
  CUdevice device;
  int value = 0;
  if (driver.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS) return true;
  const CUresult asked =
      driver.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device);
  return asked == CUDA_SUCCESS && value != 0;
}

int print_inventory(const DriverTable& driver) {
  std::vector<wire::DeviceInfo> devices;
  CUresult result = driver.cuInit(0);
  int version = 0;
  if (result == CUDA_SUCCESS) result = driver.cuDriverGetVersion(&version);
  if (result == CUDA_SUCCESS) result = list_devices(driver, &devices);
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "kvgpu-worker: the driver answers %s\n",
                 error_name(driver, result).c_str());
    return 1;
  }
  std::printf("{\"driver_version\": %d, \"devices\": [", version);
  const char* separator = "";
  int ordinal = 0;
  for (const wire::DeviceInfo& device : devices) {
    std::printf("%s{\"name\": \"%s\", \"pci_bus_id\": \"%s\", \"uuid\": \"", separator, device.name,
                device.pci_bus_id);
    for (const uint8_t byte : device.uuid) std::printf("%02x", byte);
    std::printf(
        "\", \"total_bytes\": %llu, \"compute_capability\": \"%d.%d\", \"pageable_memory_access\": "
        "%s}",
        static_cast<unsigned long long>(device.total_bytes),
        device.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
        device.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR],
        reaches_pageable_memory(driver, ordinal++) ? "true" : "false");
    separator = ", ";
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace kvgpu::worker
