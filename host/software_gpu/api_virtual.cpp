// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: reservations, physical memory, mappings, access, and descriptors by
// which other processes get physical memory.
#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "api.h"

using namespace software_gpu;

namespace {

constexpr uint64_t GRANULE_BYTES = VirtualMemory::GRANULE_BYTES;
constexpr int HOST_ORDINAL = 99;  // of a file that is no device's memory

bool is_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

VirtualMemory& virtual_memory() { return Driver::instance().virtual_memory; }

/// The host's one node is 0. Memory of no node in particular is of that one, and not for other
/// processes, as driver 580 has it.
CUresult check_host_properties(const CUmemAllocationProp& p) {
  const bool is_of_node = p.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (is_of_node && p.location.id != 0) return CUDA_ERROR_INVALID_VALUE;
  if (is_of_node && p.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
    return CUDA_ERROR_NOT_PERMITTED;
  const int types = is_of_node ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
  if (p.requestedHandleTypes & ~types || p.allocFlags.compressionType ||
      p.allocFlags.gpuDirectRDMACapable)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

/// Which device such memory is of, null for the host's; refuses what this implementation does not
/// make.
CUresult check_properties(const CUmemAllocationProp& p, Device** device) {
  *device = nullptr;
  if (p.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (is_host(p.location)) return check_host_properties(p);
  if (p.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (p.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      p.allocFlags.usage & ~CU_MEM_CREATE_USAGE_TILE_POOL || p.allocFlags.gpuDirectRDMACapable)
    return CUDA_ERROR_NOT_SUPPORTED;
  *device = Driver::instance().device(p.location.id);
  return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult find(CUmemGenericAllocationHandle handle, std::shared_ptr<const Physical>* physical) {
  RETURN_IF_FAILED(enter_without_context());
  *physical = virtual_memory().find(handle);
  return *physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// A file of its own is what can be exported.
std::shared_ptr<const Backing> exportable(int ordinal, uint64_t size_bytes) {
  auto file = SharedFile::create(SharedFile::Use::ALLOCATION, ordinal, size_bytes);
  if (!file) return nullptr;
  return std::make_shared<Backing>(std::move(file), 0, size_bytes, Backing::Origin::SHARED);
}

void forget(Device& device, const Mapping& mapping) {
  static_cast<void>(device.memory.release(mapping.base, MemoryKind::VIRTUAL, MemoryKind::VIRTUAL));
}

/// What the device sees of a mapping from now on.
void set_access(Device& device, const std::shared_ptr<const Mapping>& mapping,
                CUmemAccess_flags access) {
  if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE) return forget(device, *mapping);
  auto allocation = std::make_shared<Allocation>();
  allocation->base = mapping->base;
  allocation->size_bytes = mapping->size_bytes;
  allocation->kind = MemoryKind::VIRTUAL;
  allocation->read_only = access == CU_MEM_ACCESS_FLAGS_PROT_READ;
  allocation->buffer_id = mapping->id;
  allocation->mapping = mapping;
  device.memory.share(allocation);
}

bool is_of_host(const std::shared_ptr<const Mapping>& mapping) {
  return is_host(mapping->physical->properties.location);
}

CUresult check_access(const CUmemAccessDesc& description,
                      const std::vector<std::shared_ptr<const Mapping>>& mappings) {
  if (is_host(description.location))
    return std::ranges::all_of(mappings, is_of_host) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  if (description.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!Driver::instance().device(description.location.id)) return CUDA_ERROR_INVALID_VALUE;
  const auto flags = description.flags;
  return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                 flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult software_gpu::export_descriptor(const SharedFile& file, void* shareable) {
  const int fd = fcntl(file.fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(shareable, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

namespace {

/// In no device's account.
CUresult create_on_host(CUmemGenericAllocationHandle* handle, size_t n_bytes,
                        CUmemAllocationProp properties) {
  auto backing = exportable(HOST_ORDINAL, n_bytes);
  if (!backing) return CUDA_ERROR_OUT_OF_MEMORY;
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  Memory& account = Driver::instance().device(0)->memory;
  *handle = virtual_memory().retain(
      std::make_shared<Physical>(account, properties, std::move(backing), false));
  return CUDA_SUCCESS;
}

}  // namespace

SOFTWARE_GPU_API cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* p,
                                               CUmemAllocationGranularity_flags option) {
  RETURN_IF_FAILED(enter_without_context());
  Device* device;
  if (!granularity || !p ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
       option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  if (p->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    RETURN_IF_FAILED(check_properties(*p, &device));
  *granularity = GRANULE_BYTES;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemAddressReserve(CUdeviceptr* pointer, size_t n_bytes, size_t alignment,
                                     CUdeviceptr wanted, unsigned long long flags) {
  RETURN_IF_FAILED(enter_without_context());
  if (!pointer || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t base = 0;
  RETURN_IF_FAILED(virtual_memory().reserve(n_bytes, alignment, wanted, &base));
  *pointer = base;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemAddressFree(CUdeviceptr pointer, size_t n_bytes) {
  RETURN_IF_FAILED(enter_without_context());
  return virtual_memory().free(pointer, n_bytes);
}

SOFTWARE_GPU_API cuMemCreate(CUmemGenericAllocationHandle* handle, size_t n_bytes,
                             const CUmemAllocationProp* p, unsigned long long flags) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle || !p || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Device* device;
  RETURN_IF_FAILED(check_properties(*p, &device));
  if (n_bytes == 0 || n_bytes % GRANULE_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return create_on_host(handle, n_bytes, *p);
  Memory& memory = device->memory;
  if (!memory.charge(n_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto backing =
      p->requestedHandleTypes ? exportable(device->ordinal, n_bytes) : memory.files().take(n_bytes);
  if (!backing) {
    memory.uncharge(n_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUmemAllocationProp properties = *p;
  properties.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_NONE;  // asking is no demand
  *handle = virtual_memory().retain(
      std::make_shared<Physical>(memory, properties, std::move(backing), true));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemRelease(CUmemGenericAllocationHandle handle) {
  RETURN_IF_FAILED(enter_without_context());
  return virtual_memory().release(handle);
}

SOFTWARE_GPU_API cuMemMap(CUdeviceptr pointer, size_t n_bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  std::shared_ptr<const Physical> physical;
  RETURN_IF_FAILED(find(handle, &physical));
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return virtual_memory().map(pointer, n_bytes, std::move(physical));
}

// Work that still uses the range is not waited for: it may itself wait for what the caller does
// next. Its snapshot keeps the pages.
SOFTWARE_GPU_API cuMemUnmap(CUdeviceptr pointer, size_t n_bytes) {
  RETURN_IF_FAILED(enter_without_context());
  std::vector<std::shared_ptr<const Mapping>> unmapped;
  RETURN_IF_FAILED(virtual_memory().unmap(pointer, n_bytes, &unmapped));
  for (const auto& device : Driver::instance().devices)
    for (const auto& mapping : unmapped) forget(*device, *mapping);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemSetAccess(CUdeviceptr pointer, size_t n_bytes,
                                const CUmemAccessDesc* descriptions, size_t n) {
  RETURN_IF_FAILED(enter_without_context());
  if (!descriptions || n == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto mappings = virtual_memory().mappings_of(pointer, n_bytes);
  for (size_t i = 0; i < n; ++i) RETURN_IF_FAILED(check_access(descriptions[i], mappings));
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < n; ++i)
    for (const auto& mapping : mappings)
      if (is_host(descriptions[i].location))
        mapping->host_access = descriptions[i].flags;
      else
        set_access(*Driver::instance().device(descriptions[i].location.id), mapping,
                   descriptions[i].flags);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                CUdeviceptr pointer) {
  RETURN_IF_FAILED(enter_without_context());
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return CUDA_ERROR_INVALID_DEVICE;
  if (is_host(*location)) {
    const auto mapping = virtual_memory().mapping_of(pointer);
    if (!mapping) return CUDA_ERROR_INVALID_VALUE;
    *flags = mapping->host_access;
    return CUDA_SUCCESS;
  }
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = Driver::instance().device(location->id);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!virtual_memory().mapping_of(pointer)) return CUDA_ERROR_INVALID_VALUE;
  const auto allocation = device->memory.find(pointer);
  *flags = !allocation             ? CU_MEM_ACCESS_FLAGS_PROT_NONE
           : allocation->read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                   : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                        CUmemGenericAllocationHandle handle) {
  std::shared_ptr<const Physical> physical;
  RETURN_IF_FAILED(find(handle, &physical));
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  *properties = physical->properties;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* pointer) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = virtual_memory().mapping_of(reinterpret_cast<uint64_t>(pointer));
  if (!mapping) return CUDA_ERROR_INVALID_VALUE;
  *handle = virtual_memory().retain(mapping->physical);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  std::shared_ptr<const Physical> physical;
  RETURN_IF_FAILED(find(handle, &physical));
  if (!shareable || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (physical->properties.requestedHandleTypes != type) return CUDA_ERROR_INVALID_VALUE;
  return export_descriptor(*physical->backing->file(), shareable);
}

SOFTWARE_GPU_API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                void* shareable, CUmemAllocationHandleType type) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  auto file = SharedFile::open(descriptor_of(shareable), SharedFile::Use::ALLOCATION);
  if (!file) return CUDA_ERROR_UNKNOWN;
  const bool is_on_host = file->ordinal() == HOST_ORDINAL;
  Device* const device = Driver::instance().device(is_on_host ? 0 : file->ordinal());
  if (!device) return CUDA_ERROR_NOT_SUPPORTED;
  auto physical = virtual_memory().made_of(file->id());
  if (!physical) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = type;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
    if (is_on_host) properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    const uint64_t n_bytes = file->size_bytes();
    physical = std::make_shared<Physical>(
        device->memory, properties,
        std::make_shared<Backing>(std::move(file), 0, n_bytes, Backing::Origin::SHARED), false);
  }
  *handle = virtual_memory().retain(physical);
  return CUDA_SUCCESS;
}
