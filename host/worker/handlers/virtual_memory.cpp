// SPDX-License-Identifier: Apache-2.0
// Virtual memory management. Where the driver reserves addresses the guest keeps the same ones
// free, or gives them back.
#include <array>
#include <span>

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
  const auto parts = session.host_memory.parts(body.address, body.bytes);
  if (parts.size() != 1 || parts[0].is_host) return CUDA_ERROR_INVALID_VALUE;
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
  if (!session.virtual_memory.add(body.memory, {.raw = raw})) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult host_physical(Session& session, const Task& task, ReplyWriter& reply) {
  wire::HostPhysicalCreate body;
  if (!task.read(&body)) session.violation(task);
  wire::HostPhysical made;
  if (const CUresult bad = session.host_memory.create(body, &made)) return bad;
  if (!session.virtual_memory.add(body.memory, {.host = made})) session.violation(task);
  reply.put(made);
  return CUDA_SUCCESS;
}

CUresult mem_release(Session& session, const Task& task, ReplyWriter&) {
  wire::PhysicalRef body;
  if (!task.read(&body)) session.violation(task);
  const auto physical = session.virtual_memory.take(body.memory);
  if (!physical) return CUDA_ERROR_INVALID_VALUE;
  if (!physical->is_host()) return session.driver->cuMemRelease(physical->raw);
  session.host_memory.drop(physical->host);
  return CUDA_SUCCESS;
}

CUresult mem_retain_allocation_handle(Session& session, const Task& task, ReplyWriter&) {
  wire::PhysicalRetain body;
  if (!task.read(&body)) session.violation(task);
  if (!session.virtual_memory.is_reserved(body.address, 1)) return CUDA_ERROR_INVALID_VALUE;
  Physical physical;
  if (const auto host = session.host_memory.mapped_at(body.address)) {
    physical.host = *host;
    if (const CUresult bad = session.host_memory.hold(*host)) return bad;
  } else {
    auto* const address = reinterpret_cast<void*>(body.address);
    const CUresult bad = session.driver->cuMemRetainAllocationHandle(&physical.raw, address);
    if (bad != CUDA_SUCCESS) return bad;
  }
  if (!session.virtual_memory.add(body.memory, physical)) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult mem_map(Session& session, const Task& task, ReplyWriter&) {
  wire::PhysicalMap body;
  if (!task.read(&body)) session.violation(task);
  const auto physical = session.virtual_memory.find(body.memory);
  if (!physical || !session.virtual_memory.is_reserved(body.address, body.bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (physical->is_host()) {
    if (body.flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (body.offset != 0) return CUDA_ERROR_NOT_SUPPORTED;
    return session.host_memory.map(body.address, body.bytes, physical->host);
  }
  const auto parts = session.host_memory.parts(body.address, body.bytes);
  if (parts.size() != 1 || parts[0].is_host) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result =
      session.driver->cuMemMap(body.address, body.bytes, body.offset, physical->raw, body.flags);
  if (result == CUDA_SUCCESS) session.add_mapping(body.address, body.bytes);
  return result;
}

namespace {

CUresult unmap_of_driver(Session& session, uint64_t address, uint64_t bytes) {
  // Forgotten first, as in mem_address_free().
  const auto mappings = session.take_mappings(address, bytes);
  const CUresult result = session.driver->cuMemUnmap(address, bytes);
  if (result == CUDA_SUCCESS) return result;
  for (const auto& [each, each_bytes] : mappings) session.add_mapping(each, each_bytes);
  return result;
}

CUresult set_access_of_host(Session& session, uint64_t address,
                            std::span<const CUmemAccessDesc> accesses) {
  for (const CUmemAccessDesc& access : accesses) {
    const bool accessible = access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    const CUresult bad = session.host_memory.set_access(address, access.location.id, accessible);
    if (bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult mem_unmap(Session& session, const Task& task, ReplyWriter&) {
  wire::AddressRange body;
  if (!task.read(&body)) session.violation(task);
  const auto parts = session.host_memory.parts(body.address, body.bytes);
  if (parts.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& part : parts) {  // first what the driver may refuse
    if (part.is_host) continue;
    if (const CUresult bad = unmap_of_driver(session, part.address, part.bytes)) return bad;
  }
  for (const auto& part : parts) {
    if (part.is_host) session.host_memory.unmap(part.address);
  }
  return CUDA_SUCCESS;
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
  const auto parts = session.host_memory.parts(body.address, body.bytes);
  if (parts.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& part : parts) {
    const CUresult bad =
        part.is_host
            ? set_access_of_host(session, part.address, {accesses.data(), body.n})
            : session.driver->cuMemSetAccess(part.address, part.bytes, accesses.data(), body.n);
    if (bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
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
