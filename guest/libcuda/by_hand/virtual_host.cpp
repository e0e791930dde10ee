// SPDX-License-Identifier: Apache-2.0
#include "virtual_host.h"

#include <sys/mman.h>

#include <algorithm>

#include "address_space.h"
#include "kvgpu/layout.h"
#include "refuse.h"
#include "shared.h"
#include "virtual_memory.h"

namespace kvgpu::guest {

namespace {

// The guest's own, and those that the attribute says of the GPUs.
bool is_known_node(int node) {
  if (node <= 0) return node == 0;
  return std::ranges::any_of(Session::get().devices(), [node](const DeviceState& device) {
    return device.info.attributes[CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] == node;
  });
}

// As driver 580 checks it. Memory of CU_MEM_LOCATION_TYPE_HOST is of a node like any other, but
// not for other processes.
CUresult check_host_properties(const CUmemAllocationProp& prop) {
  const bool is_of_node = prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (is_of_node && !is_known_node(prop.location.id)) return CUDA_ERROR_INVALID_VALUE;
  if ((prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
    return is_of_node ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
  }
  constexpr unsigned SERVED_TYPES = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if ((prop.requestedHandleTypes & ~(is_of_node ? SERVED_TYPES : 0)) != 0 ||
      prop.allocFlags.compressionType != 0 || prop.allocFlags.gpuDirectRDMACapable != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

int protection_of(CUmemAccess_flags flags) {
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) return PROT_NONE;
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE;
}

}  // namespace

bool is_on_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

CUresult create_on_host(const Call& call, CUmemGenericAllocationHandle* handle, size_t size,
                        const CUmemAllocationProp& prop, unsigned long long flags) {
  if (flags != 0 || size == 0 || size % EXTENT_ALIGN_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_host_properties(prop)) return bad;
  const bool is_of_node = prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  Physical physical{prop, size, 1, 0};
  physical.properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA,
                                  is_of_node ? prop.location.id : 0};
  physical.properties.win32HandleMetaData = nullptr;
  revoke_closed();
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  const CUmemLocation& location = physical.properties.location;
  const wire::HostPhysicalCreate body{memory.new_name(), size, static_cast<uint32_t>(location.type),
                                      location.id};
  const CUresult bad = call.sync(wire::Op::HOST_PHYSICAL, body, &physical.host);
  if (bad == CUDA_ERROR_NOT_SUPPORTED) {
    return static_cast<CUresult>(refuse_part("host memory of cuMemCreate without the VM's device"));
  }
  if (bad != CUDA_SUCCESS) return bad;
  memory.add(body.memory, physical);
  *handle = body.memory;
  return CUDA_SUCCESS;
}

bool show_host_memory(uint64_t address, uint64_t bytes, const wire::HostPhysical& host) {
  auto* const pages = reinterpret_cast<void*>(address);
  return map_region_at(address, Session::get().region_fd(),
                       reserve_address_space() + host.region_off, bytes) &&
         mprotect(pages, bytes, PROT_NONE) == 0 && madvise(pages, bytes, MADV_DONTFORK) == 0;
}

// As driver 580 checks it.
CUresult check_host_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc& access) {
  if (!is_on_host(access.location)) return CUDA_ERROR_INVALID_VALUE;
  const auto mappings = memory_map().mappings_in(ptr, size);
  uint64_t end = ptr;
  for (const MemoryRange& range : mappings) {
    if (range.begin != end) break;
    if (range.kind != MemoryKind::VIRTUAL_HOST) return CUDA_ERROR_NOT_SUPPORTED;
    end += range.bytes;
  }
  return end == ptr + size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult access_of_host_memory(unsigned long long* flags, const CUmemLocation& location,
                               const MemoryRange& range) {
  if (is_on_host(location)) {
    *flags = range.host_access;
    return CUDA_SUCCESS;
  }
  const bool is_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_device || Session::get().find_device(location.id) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool reads = (range.readable >> location.id & 1) != 0;
  const bool writes = (range.writable >> location.id & 1) != 0;
  *flags = writes  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : reads ? CU_MEM_ACCESS_FLAGS_PROT_READ
                   : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult set_host_access(CUdeviceptr ptr, size_t size, CUmemAccess_flags flags) {
  const bool done = mprotect(reinterpret_cast<void*>(ptr), size, protection_of(flags)) == 0;
  return done ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace kvgpu::guest
