// SPDX-License-Identifier: Apache-2.0
// Virtual memory management. Where addresses are reserved the driver says; the same ones are kept
// free here. Host memory that kernels and the program share is of the region: where it is mapped,
// the worker maps it, too.
#include "virtual_memory.h"

#include <algorithm>
#include <span>

#include "address_space.h"
#include "call.h"
#include "generated/api.gen.h"
#include "kvgpu/memory_calls.h"
#include "memory_limit.h"
#include "memory_map.h"
#include "refuse.h"
#include "shared.h"
#include "virtual_host.h"

namespace kvgpu::guest {

VirtualMemory& VirtualMemory::get() {
  static auto& memory = *new VirtualMemory;
  return memory;
}

Physical* VirtualMemory::find(CUmemGenericAllocationHandle name) {
  const auto found = all_.find(name);
  return found == all_.end() || found->second.n_references == 0 ? nullptr : &found->second;
}

void VirtualMemory::forget_if_unused(CUmemGenericAllocationHandle name) {
  const auto found = all_.find(name);
  if (found == all_.end()) return;
  if (found->second.n_references == 0 && found->second.n_mappings == 0) all_.erase(found);
}

uint64_t VirtualMemory::bytes(int device) const {
  uint64_t sum = 0;
  for (const auto& [name, physical] : all_) {
    const bool is_of_device = !physical.is_host() && physical.properties.location.id == device;
    if (is_of_device) sum += physical.bytes;
  }
  return sum;
}

uint64_t physical_bytes(int device) {
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  return memory.bytes(device);
}

namespace {

Call call_without_context() { return Call(CaptureRule::ALLOWED, nullptr, ContextRule::OPTIONAL); }

// In the form that crosses: of memory on a device.
CUresult describe(const CUmemAllocationProp& from, wire::PhysicalProperties* to) {
  if (from.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned SERVED_TYPES = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if ((from.requestedHandleTypes & ~SERVED_TYPES) != 0) {
    return static_cast<CUresult>(refuse_part("cuMemCreate for handles that are no descriptors"));
  }
  if (from.allocFlags.gpuDirectRDMACapable != 0) {
    return static_cast<CUresult>(refuse_part("cuMemCreate for GPUDirect RDMA"));
  }
  *to = {static_cast<uint32_t>(from.type),
         static_cast<uint32_t>(from.requestedHandleTypes),
         from.location.id,
         from.allocFlags.usage,
         from.allocFlags.compressionType,
         0};
  return CUDA_SUCCESS;
}

CUresult ask_for_addresses(const Call& call, const wire::AddressReserve& body, uint64_t* address) {
  wire::AddressReserved out;
  const CUresult bad = call.sync(wire::Op::cuMemAddressReserve, body, &out);
  if (bad != CUDA_SUCCESS) return bad;
  if (reserve_for_devices(out.address, body.bytes)) {
    *address = out.address;
    return CUDA_SUCCESS;
  }
  (void)call.sync(wire::Op::cuMemAddressFree, wire::AddressRange{out.address, body.bytes});
  // A wish for what the host has free and this process has not: natively it would not be granted.
  if (body.wanted != 0) {
    return ask_for_addresses(call, {body.bytes, body.align_bytes, 0, body.flags}, address);
  }
  log(Level::WARNING,
      "the driver reserves %llu bytes at 0x%llx, which are not free in this process: refused",
      static_cast<unsigned long long>(body.bytes), static_cast<unsigned long long>(out.address));
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult mem_address_reserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (ptr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  const CUresult result = ask_for_addresses(call, {size, alignment, addr, flags}, &address);
  if (result != CUDA_SUCCESS) return result;
  memory_map().add(Reservation{address, size});
  *ptr = address;
  return CUDA_SUCCESS;
}

CUresult mem_address_free(CUdeviceptr ptr, size_t size) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  const CUresult result = call.sync(wire::Op::cuMemAddressFree, wire::AddressRange{ptr, size});
  if (result != CUDA_SUCCESS) return result;
  memory_map().remove_reservation(ptr);
  unreserve_for_devices(ptr, size);
  return CUDA_SUCCESS;
}

CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t size,
                    const CUmemAllocationProp* prop, unsigned long long flags) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (handle == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (is_on_host(prop->location)) return create_on_host(call, handle, size, *prop, flags);
  wire::PhysicalCreate body{0, size, flags, {}};
  if (const CUresult bad = describe(*prop, &body.properties)) return bad;
  revoke_closed();
  const Allowance allowance(prop->location.id, size);
  if (allowance.status() != CUDA_SUCCESS) return allowance.status();
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  body.memory = memory.new_name();
  const CUresult result = call.sync(wire::Op::cuMemCreate, body);
  if (result != CUDA_SUCCESS) return result;
  Physical physical{*prop, size, 1, 0};
  physical.properties.win32HandleMetaData = nullptr;
  physical.properties.allocFlags.compressionType = 0;  // asking is no demand
  memory.add(body.memory, physical);
  *handle = body.memory;
  return CUDA_SUCCESS;
}

CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const Call call = call_without_context();
  const CUresult pending = call.status();
  const bool may_go_on = pending == CUDA_SUCCESS || pending == Session::get().fault();
  if (!may_go_on) return pending;  // driver 580: after a fault memory is released all the same
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  Physical* const physical = memory.find(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (physical->n_references == 1) {
    const CUresult bad = call.sync(wire::Op::cuMemRelease, wire::PhysicalRef{handle});
    if (bad != CUDA_SUCCESS) return bad;
  }
  --physical->n_references;
  memory.forget_if_unused(handle);
  revoke_closed();
  return CUDA_SUCCESS;
}

CUresult mem_retain_allocation_handle(CUmemGenericAllocationHandle* handle, void* addr) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  const auto address = reinterpret_cast<uint64_t>(addr);
  const auto range = memory_map().find(address);
  if (!range || !range->is_mapping()) return CUDA_ERROR_INVALID_VALUE;
  Physical& physical = memory.mapped(range->physical);
  if (physical.n_references == 0) {
    const wire::PhysicalRetain body{range->physical, address};
    const CUresult bad = call.sync(wire::Op::cuMemRetainAllocationHandle, body);
    if (bad != CUDA_SUCCESS) return bad;
  }
  ++physical.n_references;
  *handle = range->physical;
  return CUDA_SUCCESS;
}

CUresult mem_map(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  Physical* const physical = memory.find(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const wire::PhysicalMap body{handle, ptr, size, offset, flags};
  const CUresult result = call.sync(wire::Op::cuMemMap, body);
  if (result != CUDA_SUCCESS) return result;
  if (physical->is_host() && !show_host_memory(ptr, size, physical->host)) {
    (void)call.sync(wire::Op::cuMemUnmap, wire::AddressRange{ptr, size});
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++physical->n_mappings;
  DeviceState* const device =
      physical->is_host() ? nullptr : Session::get().find_device(physical->properties.location.id);
  MemoryRange range{ptr, size, physical->is_host() ? MemoryKind::VIRTUAL_HOST : MemoryKind::VIRTUAL,
                    device != nullptr ? device->primary : Session::get().devices()[0].primary};
  range.handle_types = static_cast<uint32_t>(physical->properties.requestedHandleTypes);
  range.physical = handle;
  memory_map().add(range);
  return CUDA_SUCCESS;
}

CUresult mem_unmap(CUdeviceptr ptr, size_t size) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  revoke_closed();
  const CUresult result = call.sync(wire::Op::cuMemUnmap, wire::AddressRange{ptr, size});
  if (result != CUDA_SUCCESS) return result;
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  for (const MemoryRange& range : memory_map().take_mappings(ptr, size)) {
    if (range.kind == MemoryKind::VIRTUAL_HOST) hide_region_at(range.begin, range.bytes);
    --memory.mapped(range.physical).n_mappings;
    memory.forget_if_unused(range.physical);
  }
  return CUDA_SUCCESS;
}

CUresult mem_set_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (desc == nullptr || count == 0 || count > wire::MAX_DEVICE_ACCESSES) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::span accesses(desc, count);
  std::vector<wire::DeviceAccess> of_devices;
  for (const CUmemAccessDesc& access : accesses) {
    if (access.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      of_devices.push_back({access.location.id, static_cast<uint32_t>(access.flags)});
    } else if (const CUresult bad = check_host_access(ptr, size, access)) {
      return bad;
    }
  }
  if (!of_devices.empty()) {
    const auto bytes = static_cast<uint32_t>(of_devices.size() * sizeof of_devices[0]);
    const wire::SetAccess body{ptr, size, of_devices.size()};
    const CUresult bad = call.sync(wire::Op::cuMemSetAccess, body, Part{of_devices.data(), bytes});
    if (bad != CUDA_SUCCESS) return bad;
  }
  for (const CUmemAccessDesc& access : accesses) {
    if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      if (const CUresult bad = set_host_access(ptr, size, access.flags)) return bad;
    }
    memory_map().set_access(ptr, size, access);
  }
  return CUDA_SUCCESS;
}

CUresult mem_get_access(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return CUDA_ERROR_INVALID_DEVICE;
  const auto range = memory_map().find(ptr);
  if (range && range->kind == MemoryKind::VIRTUAL_HOST) {
    return access_of_host_memory(flags, *location, *range);
  }
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    if (!is_on_host(*location) || !range || !range->is_mapping()) return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;  // to a device's memory
    return CUDA_SUCCESS;
  }
  wire::Value64 out;
  const wire::GetAccess body{ptr, location->id, 0};
  const CUresult result = call.sync(wire::Op::cuMemGetAccess, body, &out);
  if (result == CUDA_SUCCESS) *flags = out.value;
  return result;
}

CUresult mem_get_allocation_properties_from_handle(CUmemAllocationProp* prop,
                                                   CUmemGenericAllocationHandle handle) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  const Physical* const physical = memory.find(handle);
  if (prop == nullptr || physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->properties;
  return CUDA_SUCCESS;
}

CUresult mem_get_allocation_granularity(size_t* granularity, const CUmemAllocationProp* prop,
                                        CUmemAllocationGranularity_flags option) {
  const Call call = call_without_context();
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {  // driver 580: whatever it may be
    *granularity = EXTENT_ALIGN_BYTES;
    return CUDA_SUCCESS;
  }
  wire::Granularity body{{}, static_cast<uint64_t>(option)};
  if (const CUresult bad = describe(*prop, &body.properties)) return bad;
  wire::Value64 out;
  const CUresult result = call.sync(wire::Op::cuMemGetAllocationGranularity, body, &out);
  if (result == CUDA_SUCCESS) *granularity = out.value;
  return result;
}

}  // namespace kvgpu::guest
