// SPDX-License-Identifier: Apache-2.0
// Virtual memory management. Where the driver reserves addresses the guest keeps the same ones
// free, or gives them back.
#include <array>

#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/memory_calls.h"

namespace kvgpu::worker {

namespace {

CUmemAllocationProp to_driver(const wire::PhysicalProperties& from) {
  CUmemAllocationProp to{};
  to.type = static_cast<CUmemAllocationType>(from.type);
  to.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(from.handle_types);
  to.location = {CU_MEM_LOCATION_TYPE_DEVICE, from.device};
  to.allocFlags.compressionType = from.compression;
  to.allocFlags.usage = from.usage;
  return to;
}

}  // namespace

CUresult mem_address_reserve(Session& session, const Task& task, ReplyWriter& reply) {
  wire::AddressReserve body;
  if (!task.read(&body)) session.violation(task);
  const DriverTable& driver = *session.driver;
  CUdeviceptr address = 0;
  const CUresult bad =
      driver.cuMemAddressReserve(&address, body.bytes, body.align_bytes, body.wanted, body.flags);
  if (bad != CUDA_SUCCESS) return bad;
  if (!session.virtual_memory.add_reservation(address, body.bytes)) {
    (void)driver.cuMemAddressFree(address, body.bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  reply.put(wire::AddressReserved{address});
  return CUDA_SUCCESS;
}

CUresult mem_address_free(Session& session, const Task& task, ReplyWriter&) {
  wire::AddressRange body;
  if (!task.read(&body)) session.violation(task);
  if (!session.virtual_memory.is_reserved(body.address, body.bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Forgotten first: once it is free another thread may be given the same address.
  session.virtual_memory.remove_reservation(body.address);
  const CUresult result = session.driver->cuMemAddressFree(body.address, body.bytes);
  if (result != CUDA_SUCCESS) {
    (void)session.virtual_memory.add_reservation(body.address, body.bytes);
  }
  return result;
}

CUresult mem_create(Session& session, const Task& task, ReplyWriter&) {
  wire::PhysicalCreate body;
  if (!task.read(&body)) session.violation(task);
  const CUmemAllocationProp properties = to_driver(body.properties);
  CUmemGenericAllocationHandle raw = 0;
  const CUresult bad = session.driver->cuMemCreate(&raw, body.bytes, &properties, body.flags);
  if (bad != CUDA_SUCCESS) return bad;
  if (!session.virtual_memory.add(body.memory, raw)) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult mem_release(Session& session, const Task& task, ReplyWriter&) {
  wire::PhysicalRef body;
  if (!task.read(&body)) session.violation(task);
  const auto raw = session.virtual_memory.take(body.memory);
  return raw ? session.driver->cuMemRelease(*raw) : CUDA_ERROR_INVALID_VALUE;
}

CUresult mem_retain_allocation_handle(Session& session, const Task& task, ReplyWriter&) {
  wire::PhysicalRetain body;
  if (!task.read(&body)) session.violation(task);
  if (!session.virtual_memory.is_reserved(body.address, 1)) return CUDA_ERROR_INVALID_VALUE;
  CUmemGenericAllocationHandle raw = 0;
  const CUresult bad =
      session.driver->cuMemRetainAllocationHandle(&raw, reinterpret_cast<void*>(body.address));
  if (bad != CUDA_SUCCESS) return bad;
  if (!session.virtual_memory.add(body.memory, raw)) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult mem_map(Session& session, const Task& task, ReplyWriter&) {
  wire::PhysicalMap body;
  if (!task.read(&body)) session.violation(task);
  const auto raw = session.virtual_memory.find(body.memory);
  if (!raw || !session.virtual_memory.is_reserved(body.address, body.bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result =
      session.driver->cuMemMap(body.address, body.bytes, body.offset, *raw, body.flags);
  if (result == CUDA_SUCCESS) session.add_mapping(body.address, body.bytes);
  return result;
}

CUresult mem_unmap(Session& session, const Task& task, ReplyWriter&) {
  wire::AddressRange body;
  if (!task.read(&body)) session.violation(task);
  // Forgotten first, as in mem_address_free().
  const auto mappings = session.take_mappings(body.address, body.bytes);
  const CUresult result = session.driver->cuMemUnmap(body.address, body.bytes);
  if (result == CUDA_SUCCESS) return result;
  for (const auto& [address, bytes] : mappings) session.add_mapping(address, bytes);
  return result;
}

CUresult mem_set_access(Session& session, const Task& task, ReplyWriter&) {
  wire::SetAccess body;
  if (!task.read(&body)) session.violation(task);
  const auto rest = task.after<wire::SetAccess>();
  if (body.n > wire::MAX_DEVICE_ACCESSES || rest.size() < body.n * sizeof(wire::DeviceAccess)) {
    session.violation(task);
  }
  std::array<CUmemAccessDesc, wire::MAX_DEVICE_ACCESSES> accesses{};
  for (size_t i = 0; i < body.n; ++i) {
    wire::DeviceAccess access;
    std::memcpy(&access, rest.data() + i * sizeof access, sizeof access);
    accesses[i] = {{CU_MEM_LOCATION_TYPE_DEVICE, access.device},
                   static_cast<CUmemAccess_flags>(access.flags)};
  }
  return session.driver->cuMemSetAccess(body.address, body.bytes, accesses.data(), body.n);
}

CUresult mem_get_access(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GetAccess body;
  if (!task.read(&body)) session.violation(task);
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, body.device};
  unsigned long long flags = 0;
  const CUresult result = session.driver->cuMemGetAccess(&flags, &location, body.address);
  reply.put(wire::Value64{flags});
  return result;
}

CUresult mem_get_allocation_granularity(Session& session, const Task& task, ReplyWriter& reply) {
  wire::Granularity body;
  if (!task.read(&body)) session.violation(task);
  const CUmemAllocationProp properties = to_driver(body.properties);
  size_t bytes = 0;
  const CUresult result = session.driver->cuMemGetAllocationGranularity(
      &bytes, &properties, static_cast<CUmemAllocationGranularity_flags>(body.option));
  reply.put(wire::Value64{bytes});
  return result;
}

}  // namespace kvgpu::worker
