// SPDX-License-Identifier: Apache-2.0
// What processes of a VM share: physical memory and pools by descriptor, allocations of pools,
// memory of cuMemAlloc and events by handle. The driver's descriptors and handles stay on the host:
// the guest has tokens, and another VM's token is worth nothing.
#include "control.h"
#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/memory_calls.h"

namespace kvgpu::worker {

namespace {

// What answers for a token that stands for nothing (any more), or for something else.
constexpr CUresult NO_SUCH_DESCRIPTOR = CUDA_ERROR_UNKNOWN;  // as driver 580
constexpr CUresult NO_SUCH_HANDLE = CUDA_ERROR_INVALID_HANDLE;

CUresult give(Session& session, Share share, uint64_t object, ReplyWriter& reply) {
  const auto token = session.control->shares.add(std::move(share), object);
  if (!token) return CUDA_ERROR_OUT_OF_MEMORY;
  reply.put(*token);
  return CUDA_SUCCESS;
}

// By the driver's call into an opaque struct of 64 bytes; what was given before is given again.
template <typename Handle, typename DriverCall>
CUresult give_handle(Session& session, ShareKind kind, uint64_t object, ReplyWriter& reply,
                     DriverCall driver_call) {
  static_assert(sizeof(Handle) == sizeof(Share::content));
  if (const auto known = session.control->shares.find(kind, object)) {
    reply.put(*known);
    return CUDA_SUCCESS;
  }
  Handle handle{};
  if (const CUresult bad = driver_call(&handle)) return bad;
  Share share{kind, {}, {}};
  std::memcpy(share.content.data(), &handle, sizeof handle);
  if (session.driver->ipc.descriptor_of != nullptr && kind != ShareKind::POINTER) {
    share.descriptor = Descriptor(session.driver->ipc.descriptor_of(&handle));
  }
  return give(session, std::move(share), object, reply);
}

template <typename Handle>
bool take_handle(Session& session, const wire::Token& token, ShareKind kind, Handle* handle) {
  const Share share = session.control->resolve(token);
  if (share.kind != kind) return false;
  std::memcpy(handle, share.content.data(), sizeof *handle);
  const bool is_of_another = !session.control->shares.is_own(token);
  if (is_of_another && share.descriptor.get() >= 0 && session.driver->ipc.offer != nullptr) {
    session.driver->ipc.offer(share.descriptor.get());
  }
  return true;
}

// Memory of another process at an address of this one's. `close` where it is none.
template <typename Close>
CUresult show(Session& session, uint64_t address, wire::Handle context, ReplyWriter& reply,
              Close close) {
  size_t bytes = 0;
  const CUresult result =
      session.driver->cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
  if (result != CUDA_SUCCESS) {
    close();
    return result;
  }
  session.add_device_range(address, {.bytes = bytes, .context = context});
  reply.put(wire::OpenedMemory{address, bytes});
  return CUDA_SUCCESS;
}

int device_by_uuid(const DriverTable& driver, const std::byte* uuid) {
  int n = 0;
  (void)driver.cuDeviceGetCount(&n);
  for (int device = 0; device < n; ++device) {
    CUuuid known;
    if (driver.cuDeviceGetUuid_v2(&known, device) != CUDA_SUCCESS) continue;
    if (std::memcmp(known.bytes, uuid, sizeof known.bytes) == 0) return device;
  }
  return -1;
}

// Whoever imports it holds the extent, too, by kvgpud's word.
CUresult give_host_memory(Session& session, const wire::HostPhysical& host, ReplyWriter& reply) {
  Share share{ShareKind::HOST_MEMORY, {}, {}};
  std::memcpy(share.content.data(), &host, sizeof host);
  if (const CUresult bad = session.host_memory.hold(host)) return bad;
  const CUresult result = give(session, std::move(share), 0, reply);
  if (result != CUDA_SUCCESS) session.host_memory.drop(host);
  return result;
}

wire::HostPhysical host_memory_in(const Share& share) {
  wire::HostPhysical host;
  std::memcpy(&host, share.content.data(), sizeof host);
  return host;
}

}  // namespace

CUresult mem_export_to_shareable_handle(Session& session, const Task& task, ReplyWriter& reply) {
  wire::PhysicalExport body;
  if (!task.read(&body)) session.violation(task);
  const auto physical = session.virtual_memory.find(body.memory);
  if (!physical) return CUDA_ERROR_INVALID_VALUE;
  if (physical->is_host()) return give_host_memory(session, physical->host, reply);
  int fd = -1;
  const CUresult bad = session.driver->cuMemExportToShareableHandle(
      &fd, physical->raw, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, body.flags);
  if (bad != CUDA_SUCCESS) return bad;
  return give(session, {ShareKind::PHYSICAL, {}, Descriptor(fd)}, 0, reply);
}

CUresult mem_import_from_shareable_handle(Session& session, const Task& task, ReplyWriter& reply) {
  wire::PhysicalImport body;
  if (!task.read(&body)) session.violation(task);
  const std::lock_guard lock(session.host_memory.importing);
  const Share share = session.control->resolve(body.token);
  if (share.kind == ShareKind::NONE) return NO_SUCH_DESCRIPTOR;
  if (share.kind == ShareKind::HOST_MEMORY) {
    if (session.guest_minor < 4) return CUDA_ERROR_NOT_SUPPORTED;  // it expects a device's
    const wire::HostPhysical host = host_memory_in(share);
    if (const CUresult bad = session.host_memory.hold(host)) return bad;
    if (!session.virtual_memory.add(body.memory, {.host = host})) session.violation(task);
    reply.put(wire::PhysicalImported{{CU_MEM_ALLOCATION_TYPE_PINNED, 0, 0, 0, 0, 0}, host});
    return CUDA_SUCCESS;
  }
  if (share.kind != ShareKind::PHYSICAL) return CUDA_ERROR_NOT_SUPPORTED;
  const DriverTable& driver = *session.driver;
  CUmemGenericAllocationHandle raw = 0;
  auto* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(share.descriptor.get()));
  const CUresult bad = driver.cuMemImportFromShareableHandle(
      &raw, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (bad != CUDA_SUCCESS) return bad;
  CUmemAllocationProp properties{};
  const CUresult result = driver.cuMemGetAllocationPropertiesFromHandle(&properties, raw);
  if (result != CUDA_SUCCESS) {
    (void)driver.cuMemRelease(raw);
    return result;
  }
  if (!session.virtual_memory.add(body.memory, {.raw = raw})) session.violation(task);
  reply.put(wire::PhysicalProperties{static_cast<uint32_t>(properties.type),
                                     static_cast<uint32_t>(properties.requestedHandleTypes),
                                     properties.location.id, properties.allocFlags.usage,
                                     properties.allocFlags.compressionType, 0});
  return CUDA_SUCCESS;
}

CUresult mem_pool_export_to_shareable_handle(Session& session, const Task& task,
                                             ReplyWriter& reply) {
  wire::PoolExport body;
  if (!task.read(&body)) session.violation(task);
  CUmemoryPool pool;
  if (!session.handles.get(body.pool, &pool)) return CUDA_ERROR_INVALID_VALUE;
  CUuuid uuid;
  if (const CUresult bad = session.driver->cuDeviceGetUuid_v2(&uuid, body.device)) return bad;
  int fd = -1;
  const CUresult bad = session.driver->cuMemPoolExportToShareableHandle(
      &fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, body.flags);
  if (bad != CUDA_SUCCESS) return bad;
  Share share{ShareKind::POOL, {}, Descriptor(fd)};
  std::memcpy(share.content.data(), uuid.bytes, sizeof uuid.bytes);
  return give(session, std::move(share), 0, reply);
}

CUresult mem_pool_import_from_shareable_handle(Session& session, const Task& task,
                                               ReplyWriter& reply) {
  wire::PoolImport body;
  if (!task.read(&body)) session.violation(task);
  const Share share = session.control->resolve(body.token);
  if (share.kind == ShareKind::NONE) return NO_SUCH_DESCRIPTOR;
  if (share.kind != ShareKind::POOL) return CUDA_ERROR_NOT_SUPPORTED;
  const int device = device_by_uuid(*session.driver, share.content.data());
  if (device < 0) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemoryPool pool = nullptr;
  auto* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(share.descriptor.get()));
  const CUresult bad = session.driver->cuMemPoolImportFromShareableHandle(
      &pool, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, body.flags);
  if (bad != CUDA_SUCCESS) return bad;
  if (!session.handles.add(body.pool, pool, 0)) session.violation(task);
  reply.put(wire::PoolImported{device, 0});
  return CUDA_SUCCESS;
}

CUresult mem_pool_export_pointer(Session& session, const Task& task, ReplyWriter& reply) {
  wire::PointerExport body;
  if (!task.read(&body)) session.violation(task);
  if (!session.is_guest_memory(body.address, 1)) return CUDA_ERROR_INVALID_VALUE;
  return give_handle<CUmemPoolPtrExportData>(
      session, ShareKind::POINTER, body.address, reply, [&](CUmemPoolPtrExportData* data) {
        return session.driver->cuMemPoolExportPointer(data, body.address);
      });
}

CUresult mem_pool_import_pointer(Session& session, const Task& task, ReplyWriter& reply) {
  wire::PointerImport body;
  if (!task.read(&body)) session.violation(task);
  CUmemoryPool pool;
  if (!session.handles.get(body.pool, &pool)) return CUDA_ERROR_INVALID_VALUE;
  CUmemPoolPtrExportData data{};
  if (!take_handle(session, body.token, ShareKind::POINTER, &data)) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr address = 0;
  if (const CUresult bad = session.driver->cuMemPoolImportPointer(&address, pool, &data))
    return bad;
  return show(session, address, 0, reply,
              [&] { (void)session.driver->cuMemFreeAsync(address, nullptr); });
}

CUresult ipc_get_mem_handle(Session& session, const Task& task, ReplyWriter& reply) {
  wire::PointerExport body;
  if (!task.read(&body)) session.violation(task);
  if (!session.is_guest_memory(body.address, 1)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = session.enter(body.context)) return bad;
  return give_handle<CUipcMemHandle>(
      session, ShareKind::MEMORY, body.address, reply, [&](CUipcMemHandle* handle) {
        return session.driver->cuIpcGetMemHandle(handle, body.address);
      });
}

CUresult ipc_open_mem_handle_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::OpenMemory body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUipcMemHandle handle{};
  if (!take_handle(session, body.token, ShareKind::MEMORY, &handle)) return NO_SUCH_HANDLE;
  CUdeviceptr address = 0;
  const CUresult bad =
      session.driver->cuIpcOpenMemHandle_v2(&address, handle, static_cast<unsigned>(body.flags));
  if (bad != CUDA_SUCCESS) return bad;
  return show(session, address, body.context, reply,
              [&] { (void)session.driver->cuIpcCloseMemHandle(address); });
}

CUresult ipc_close_mem_handle(Session& session, const Task& task, ReplyWriter&) {
  wire::CloseMemory body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  const auto range = session.remove_device_range(body.address);
  if (range.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = session.driver->cuIpcCloseMemHandle(body.address);
  size_t bytes = 0;  // still there where it was opened more than once
  const bool is_open = session.driver->cuPointerGetAttribute(
                           &bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, body.address) == CUDA_SUCCESS;
  if (result != CUDA_SUCCESS || is_open) session.add_device_range(body.address, range);
  return result;
}

CUresult ipc_get_event_handle(Session& session, const Task& task, ReplyWriter& reply) {
  wire::EventRef body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUevent event;
  if (!session.handles.get(body.event, &event)) return CUDA_ERROR_INVALID_HANDLE;
  return give_handle<CUipcEventHandle>(
      session, ShareKind::EVENT, body.event, reply,
      [&](CUipcEventHandle* handle) { return session.driver->cuIpcGetEventHandle(handle, event); });
}

CUresult ipc_open_event_handle(Session& session, const Task& task, ReplyWriter&) {
  wire::OpenEvent body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUipcEventHandle handle{};
  if (!take_handle(session, body.token, ShareKind::EVENT, &handle)) return NO_SUCH_HANDLE;
  CUevent event = nullptr;
  if (const CUresult bad = session.driver->cuIpcOpenEventHandle(&event, handle)) return bad;
  if (!session.handles.add(body.event, event, body.context)) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult revoke(Session& session, const Task& task, ReplyWriter&) {
  wire::Revoke body;
  if (!task.read(&body)) session.violation(task);
  const Share share = session.control->shares.remove(body.token);
  if (share.kind == ShareKind::HOST_MEMORY) session.host_memory.drop(host_memory_in(share));
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::worker
