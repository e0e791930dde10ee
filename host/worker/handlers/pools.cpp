// SPDX-License-Identifier: Apache-2.0
// Memory pools and what is allocated from them in stream order.
#include "control.h"
#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/graph_calls.h"

namespace kvgpu::worker {

namespace {

CUmemLocation location_of(uint32_t device) {
  return {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(device)};
}

template <typename Allocate>
CUresult allocate(Session& session, const wire::MemAllocAsync& body, ReplyWriter& reply,
                  Allocate driver_call) {
  const auto stream = session.handles.stream(body.stream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = session.enter(*stream)) return bad;
  CUdeviceptr dptr = 0;
  if (const CUresult bad = driver_call(&dptr, stream->raw)) return bad;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  (void)session.driver->cuStreamIsCapturing(stream->raw, &status);
  const bool of_graph = status != CU_STREAM_CAPTURE_STATUS_NONE;
  session.add_device_range(dptr, {body.bytes, stream->memory_handle(), of_graph});
  reply.put(wire::MemAllocated{dptr});
  return CUDA_SUCCESS;
}

}  // namespace

CUresult mem_alloc_async(Session& session, const Task& task, ReplyWriter& reply) {
  wire::MemAllocAsync body;
  if (!task.read(&body)) session.violation(task);
  if (session.driver->cuMemAllocAsync == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return allocate(session, body, reply, [&](CUdeviceptr* dptr, CUstream stream) {
    return session.driver->cuMemAllocAsync(dptr, body.bytes, stream);
  });
}

CUresult mem_alloc_from_pool_async(Session& session, const Task& task, ReplyWriter& reply) {
  wire::MemAllocAsync body;
  if (!task.read(&body)) session.violation(task);
  CUmemoryPool pool;
  if (!session.handles.get(body.pool, &pool)) return CUDA_ERROR_INVALID_VALUE;
  if (session.driver->cuMemAllocFromPoolAsync == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return allocate(session, body, reply, [&](CUdeviceptr* dptr, CUstream stream) {
    return session.driver->cuMemAllocFromPoolAsync(dptr, body.bytes, pool, stream);
  });
}

CUresult mem_free_async(Session& session, const Task& task, ReplyWriter&) {
  wire::FreeAsync body;
  if (!task.read(&body)) session.violation(task);
  const auto range = session.remove_device_range(body.dptr);
  if (range.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  session.control->shares.remove(ShareKind::POINTER, body.dptr);
  const CUresult result = session.driver->cuMemFreeAsync(body.dptr, task.stream->raw);
  if (result != CUDA_SUCCESS) {
    session.add_device_range(body.dptr, range);
  } else {
    task.stream->freed.note();
  }
  return result;
}

CUresult device_get_graph_mem_attribute(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphMemAttribute body;
  if (!task.read(&body)) session.violation(task);
  if (body.attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
    return CUDA_ERROR_INVALID_VALUE;  // of unknown size
  }
  uint64_t value = 0;
  const CUresult result = session.driver->cuDeviceGetGraphMemAttribute(
      static_cast<CUdevice>(body.device), static_cast<CUgraphMem_attribute>(body.attribute),
      &value);
  reply.put(wire::Value64{value});
  return result;
}

CUresult device_set_graph_mem_attribute(Session& session, const Task& task, ReplyWriter&) {
  wire::GraphMemAttribute body;
  if (!task.read(&body)) session.violation(task);
  return session.driver->cuDeviceSetGraphMemAttribute(
      static_cast<CUdevice>(body.device), static_cast<CUgraphMem_attribute>(body.attribute),
      &body.value);
}

CUresult mem_pool_create(Session& session, const Task& task, ReplyWriter&) {
  wire::PoolCreate body;
  if (!task.read(&body)) session.violation(task);
  if (session.driver->cuMemPoolCreate == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location_of(body.device);
  properties.maxSize = body.max_bytes;
  properties.usage = body.usage;
  properties.handleTypes = static_cast<CUmemAllocationHandleType>(body.handle_types);
  CUmemoryPool pool;
  if (const CUresult bad = session.driver->cuMemPoolCreate(&pool, &properties)) return bad;
  if (!session.handles.add(body.pool, pool, 0)) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult mem_pool_set_attribute(Session& session, const Task& task, ReplyWriter&) {
  wire::PoolAttribute body;
  if (!task.read(&body)) session.violation(task);
  CUmemoryPool pool;
  if (!session.handles.get(body.pool, &pool)) return CUDA_ERROR_INVALID_VALUE;
  // Room for every attribute's type; little endian, so an int lies where a number's low half does.
  uint64_t value = body.value;
  return session.driver->cuMemPoolSetAttribute(
      pool, static_cast<CUmemPool_attribute>(body.attribute), &value);
}

CUresult mem_pool_get_attribute(Session& session, const Task& task, ReplyWriter& reply) {
  wire::PoolAttribute body;
  if (!task.read(&body)) session.violation(task);
  CUmemoryPool pool;
  if (!session.handles.get(body.pool, &pool)) return CUDA_ERROR_INVALID_VALUE;
  if (body.attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
      body.attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    return CUDA_ERROR_INVALID_VALUE;  // of unknown size
  }
  uint64_t value = 0;
  const CUresult result = session.driver->cuMemPoolGetAttribute(
      pool, static_cast<CUmemPool_attribute>(body.attribute), &value);
  reply.put(wire::Value64{value});
  return result;
}

CUresult mem_pool_set_access(Session& session, const Task& task, ReplyWriter&) {
  wire::PoolAccess body;
  if (!task.read(&body)) session.violation(task);
  CUmemoryPool pool;
  if (!session.handles.get(body.pool, &pool)) return CUDA_ERROR_INVALID_VALUE;
  const CUmemAccessDesc access{location_of(body.device),
                               static_cast<CUmemAccess_flags>(body.flags)};
  return session.driver->cuMemPoolSetAccess(pool, &access, 1);
}

CUresult mem_pool_get_access(Session& session, const Task& task, ReplyWriter& reply) {
  wire::PoolAccess body;
  if (!task.read(&body)) session.violation(task);
  CUmemoryPool pool;
  if (!session.handles.get(body.pool, &pool)) return CUDA_ERROR_INVALID_VALUE;
  CUmemAccess_flags flags{};
  CUmemLocation location = location_of(body.device);
  const CUresult result = session.driver->cuMemPoolGetAccess(&flags, pool, &location);
  reply.put(wire::Value64{static_cast<uint64_t>(flags)});
  return result;
}

CUresult device_get_default_mem_pool(Session& session, const Task& task, ReplyWriter&) {
  wire::DevicePool body;
  if (!task.read(&body)) session.violation(task);
  if (session.driver->cuDeviceGetDefaultMemPool == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemoryPool pool;
  const auto device = static_cast<CUdevice>(body.device);
  if (const CUresult bad = session.driver->cuDeviceGetDefaultMemPool(&pool, device)) return bad;
  if (!session.handles.add(body.pool, pool, 0)) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult device_set_mem_pool(Session& session, const Task& task, ReplyWriter&) {
  wire::DevicePool body;
  if (!task.read(&body)) session.violation(task);
  CUmemoryPool pool;
  if (!session.handles.get(body.pool, &pool)) return CUDA_ERROR_INVALID_VALUE;
  return session.driver->cuDeviceSetMemPool(static_cast<CUdevice>(body.device), pool);
}

}  // namespace kvgpu::worker
