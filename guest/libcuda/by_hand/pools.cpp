// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation. An address comes with a reply, or is one that the stream has just
// freed (freed_memory.h); freeing is fire and forget.
#include "pools.h"

#include "address_space.h"
#include "driver_waits.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "kvgpu/plain_calls.gen.h"
#include "log.h"
#include "memory_limit.h"
#include "memory_map.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

// Of a device: its default pool once it was asked for, and the current one where it is another.
struct DevicePools {
  wire::Handle default_pool = 0;
  wire::Handle current = 0;
};
std::mutex mutex;
auto& pools = *new std::map<int, DevicePools>;

bool is_device(CUdevice dev) { return Session::get().find_device(dev) != nullptr; }

}  // namespace

CUresult check_location(const CUmemLocation* location, CUmemAllocationType type) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;  // then it may be nowhere
  const auto first = is_managed ? CU_MEM_LOCATION_TYPE_NONE : CU_MEM_LOCATION_TYPE_DEVICE;
  if ((!is_managed && type != CU_MEM_ALLOCATION_TYPE_PINNED) || location->type < first ||
      location->type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return static_cast<CUresult>(refuse_part("a memory pool that is not in device memory"));
  }
  return is_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

namespace {

// As the memory map names it.
wire::Handle pool_of(wire::Handle named, const Stream& stream) {
  return named != 0 ? named : current_pool(stream.context->device);
}

MemoryRange pool_range(uint64_t address, uint64_t bytes, wire::Handle pool, Context* context) {
  MemoryRange range{address, bytes, MemoryKind::POOL, context};
  range.pool = pool;
  if (const MemPool* const its = tables().mem_pools.find(pool)) {
    range.handle_types = its->handle_types;
  }
  return range;
}

CUresult allocate(CUdeviceptr* dptr, size_t bytes, CUstream stream, wire::Handle pool,
                  wire::Op op) {
  if (dptr == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (enqueue.capture() == nullptr) {
    if (const CUresult bad = unsafe_call_allowed()) return bad;
  }
  const bool is_named = op == wire::Op::cuMemAllocFromPoolAsync;
  if (is_named && tables().mem_pools.find(pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Allowance allowance(enqueue.call(), bytes);
  if (allowance.status() != CUDA_SUCCESS) return allowance.status();
  Stream& target = enqueue.stream();
  Capture* const capture = enqueue.capture();
  if (capture == nullptr) {
    const wire::Handle its = pool_of(pool, target);
    if (const auto freed = Session::get().take_freed(target.handle, its, bytes)) {
      target.has_taken_freed.store(true, std::memory_order_relaxed);
      memory_map().add(pool_range(*freed, bytes, its, target.context));
      *dptr = *freed;
      return CUDA_SUCCESS;
    }
  }
  const wire::MemAllocAsync body{target.context->handle, target.handle, pool, bytes};
  wire::MemAllocated out;
  const CUresult result = enqueue.call().sync(op, body, &out);
  if (result != CUDA_SUCCESS) return result;
  target.dirty.store(true, std::memory_order_release);  // pairs with mark_stream()
  if (!keep_for_devices(out.dptr, bytes)) {
    log(Level::WARNING,
        "the device address 0x%llx is not free in this process: the allocation is refused",
        static_cast<unsigned long long>(out.dptr));
    (void)enqueue.submit(wire::Op::cuMemFreeAsync, wire::FreeAsync{0, 0, out.dptr});
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (capture != nullptr) capture->with_graph([](Graph& graph) { graph.has_memory = true; });
  memory_map().add(capture != nullptr
                       ? MemoryRange{out.dptr, bytes, MemoryKind::GRAPH, target.context}
                       : pool_range(out.dptr, bytes, pool_of(pool, target), target.context));
  *dptr = out.dptr;
  return CUDA_SUCCESS;
}

// The attributes' types (CUDA 13.0 cuda.h, CUmemPool_attribute).
enum class Width { NONE, INT, U64 };
Width width_of(CUmemPool_attribute attribute) {
  if (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
      attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    return Width::NONE;
  }
  return attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? Width::INT : Width::U64;
}

}  // namespace

wire::Handle current_pool(int device) {
  const std::lock_guard lock(mutex);
  const DevicePools& known = pools[device];
  // A destroyed pool is current no more (CUDA 13.0 cuda.h, cuMemPoolDestroy).
  return tables().mem_pools.find(known.current) != nullptr ? known.current : known.default_pool;
}

CUresult device_get_default_mem_pool(CUmemoryPool* pool_out, CUdevice dev) {
  if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(mutex);
  DevicePools& known = pools[dev];
  if (known.default_pool == 0) {
    MemPool* const pool = tables().mem_pools.create();
    if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->device = dev;
    const wire::DevicePool body{pool->handle, static_cast<uint32_t>(dev), 0};
    const CUresult result = call.sync(wire::Op::cuDeviceGetDefaultMemPool, body);
    if (result != CUDA_SUCCESS) {
      tables().mem_pools.remove(pool->handle);
      return result;
    }
    known.default_pool = pool->handle;
  }
  *pool_out = from_wire<CUmemoryPool>(known.default_pool);
  return CUDA_SUCCESS;
}

CUresult device_get_mem_pool(CUmemoryPool* pool, CUdevice dev) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUmemoryPool default_pool;
  if (!is_device(dev)) return CUDA_ERROR_INVALID_VALUE;  // as driver 580
  if (const CUresult bad = device_get_default_mem_pool(&default_pool, dev)) return bad;
  *pool = from_wire<CUmemoryPool>(current_pool(dev));
  return CUDA_SUCCESS;
}

CUresult device_set_mem_pool(CUdevice dev, CUmemoryPool pool) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const MemPool* const known = find(pool);
  if (known == nullptr || known->device != dev) return CUDA_ERROR_INVALID_VALUE;
  const wire::DevicePool body{known->handle, static_cast<uint32_t>(dev), 0};
  const CUresult result = call.sync(wire::Op::cuDeviceSetMemPool, body);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(mutex);
  pools[dev].current = known->handle;
  return CUDA_SUCCESS;
}

CUresult mem_get_default_mem_pool(CUmemoryPool* pool_out, CUmemLocation* location,
                                  CUmemAllocationType type) {
  if (const CUresult bad = check_location(location, type)) return bad;
  return device_get_default_mem_pool(pool_out, location->id);
}
CUresult mem_get_mem_pool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  if (const CUresult bad = check_location(location, type)) return bad;
  return device_get_mem_pool(pool, location->id);
}
CUresult mem_set_mem_pool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  if (const CUresult bad = check_location(location, type)) return bad;
  return device_set_mem_pool(location->id, pool);
}

CUresult mem_pool_create(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  if (pool == nullptr || poolProps == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const CUresult bad = check_location(&poolProps->location, poolProps->allocType);
  if (bad != CUDA_SUCCESS) return bad;
  if ((poolProps->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    return static_cast<CUresult>(
        refuse_part("cuMemPoolCreate for handles that are no descriptors"));
  }
  MemPool* const made = tables().mem_pools.create();
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = poolProps->location.id;
  made->handle_types = static_cast<unsigned>(poolProps->handleTypes);
  const wire::PoolCreate body{made->handle, poolProps->maxSize,
                              static_cast<uint32_t>(poolProps->location.id), poolProps->usage,
                              static_cast<uint16_t>(poolProps->handleTypes)};
  const CUresult result = call.sync(wire::Op::cuMemPoolCreate, body);
  if (result != CUDA_SUCCESS) {
    tables().mem_pools.remove(made->handle);
    return result;
  }
  *pool = from_wire<CUmemoryPool>(made->handle);
  return CUDA_SUCCESS;
}

CUresult mem_pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Width width = width_of(attr);
  if (find(pool) == nullptr || value == nullptr || width == Width::NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t number = width == Width::INT ? static_cast<uint64_t>(*static_cast<int*>(value))
                                              : *static_cast<cuuint64_t*>(value);
  const wire::PoolAttribute body{to_wire(pool), number, static_cast<uint32_t>(attr), 0};
  const CUresult result = call.sync(wire::Op::cuMemPoolSetAttribute, body);
  if (result == CUDA_SUCCESS && attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    find(pool)->release_threshold.store(number, std::memory_order_relaxed);
    // What was freed before is given back from now on.
    Stream* const legacy = call.context() == 0 ? nullptr : call.context_object().legacy;
    if (legacy != nullptr) DriverWaits::memory().add(*legacy);
  }
  return result;
}

CUresult mem_pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Width width = width_of(attr);
  if (find(pool) == nullptr || value == nullptr || width == Width::NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const wire::PoolAttribute body{to_wire(pool), 0, static_cast<uint32_t>(attr), 0};
  wire::Value64 out;
  const CUresult result = call.sync(wire::Op::cuMemPoolGetAttribute, body, &out);
  if (result != CUDA_SUCCESS) return result;
  if (width == Width::INT) {
    *static_cast<int*>(value) = static_cast<int>(out.value);
  } else {
    *static_cast<cuuint64_t*>(value) = out.value;
  }
  return CUDA_SUCCESS;
}

CUresult mem_pool_trim_to(CUmemoryPool pool, size_t minBytesToKeep) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (find(pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // The program may have waited since memory was freed.
  const Context* const primary = Session::get().find_device(find(pool)->device)->primary;
  const bool is_there = call.context() != 0 && call.device() == find(pool)->device;
  const Context* const context = is_there ? &call.context_object() : primary;
  if (context->active.load(std::memory_order_acquire)) {
    if (const CUresult bad = tell_of_wait(*context)) return bad;
  }
  const wire::cuMemPoolTrimTo_in in{call.context(), to_wire(pool), minBytesToKeep};
  return call.sync(wire::Op::cuMemPoolTrimTo, in);
}

CUresult mem_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (find(pool) == nullptr || (map == nullptr && count != 0)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !is_device(map[i].location.id)) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    const CUresult bad = check_location(&map[i].location, CU_MEM_ALLOCATION_TYPE_PINNED);
    if (bad != CUDA_SUCCESS) return bad;
  }
  for (size_t i = 0; i < count; ++i) {
    const wire::PoolAccess body{to_wire(pool), static_cast<uint32_t>(map[i].location.id),
                                static_cast<uint32_t>(map[i].flags)};
    if (const CUresult bad = call.sync(wire::Op::cuMemPoolSetAccess, body)) return bad;
  }
  return CUDA_SUCCESS;
}

CUresult mem_pool_get_access(CUmemAccess_flags* flags, CUmemoryPool memPool,
                             CUmemLocation* location) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (flags == nullptr || find(memPool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_location(location, CU_MEM_ALLOCATION_TYPE_PINNED)) return bad;
  const wire::PoolAccess body{to_wire(memPool), static_cast<uint32_t>(location->id), 0};
  wire::Value64 out;
  const CUresult result = call.sync(wire::Op::cuMemPoolGetAccess, body, &out);
  if (result == CUDA_SUCCESS) *flags = static_cast<CUmemAccess_flags>(out.value);
  return result;
}

CUresult mem_alloc_async(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return allocate(dptr, bytesize, hStream, 0, wire::Op::cuMemAllocAsync);
}

CUresult mem_alloc_from_pool_async(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                   CUstream hStream) {
  return allocate(dptr, bytesize, hStream, to_wire(pool), wire::Op::cuMemAllocFromPoolAsync);
}

namespace {

// Does a wait make the pool (as the memory map names it) give memory back?
bool gives_back(wire::Handle pool) {
  const MemPool* const known = tables().mem_pools.find(pool);
  return known == nullptr || known->release_threshold.load(std::memory_order_relaxed) != UINT64_MAX;
}

CUresult free_of_pool(const Enqueue& enqueue, const MemoryRange& range) {
  Stream& stream = enqueue.stream();
  // The stream's next allocation may have it only if nothing else of it differs from what the
  // driver would give.
  const bool is_plain = range.context == stream.context && range.handle_types == 0 &&
                        !range.is_imported && !range.sync_memops;
  if (!is_plain) {
    return enqueue.submit(wire::Op::cuMemFreeAsync, wire::FreeAsync{0, 0, range.begin});
  }
  const CUresult result = Session::get().free_async(
      {range.begin, range.bytes, range.pool, stream.handle, stream.context->device});
  stream.dirty.store(true, std::memory_order_release);  // pairs with mark_stream()
  return result;
}

}  // namespace

CUresult mem_free_async(CUdeviceptr dptr, CUstream hStream) {
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (enqueue.capture() == nullptr) {
    if (const CUresult bad = unsafe_call_allowed()) return bad;
  }
  if (dptr == 0) return CUDA_SUCCESS;
  const wire::FreeAsync body{0, 0, dptr};
  const auto known = memory_map().find(dptr);
  if (!known || known->begin != dptr) return CUDA_ERROR_INVALID_VALUE;
  if (known->kind == MemoryKind::MANAGED) return CUDA_ERROR_NOT_SUPPORTED;  // as natively
  Capture* const capture = enqueue.capture();
  if (capture != nullptr || known->kind == MemoryKind::GRAPH) {
    // Whether it may be is the driver's to say; a launch may allocate it again.
    const CUresult result = enqueue.submit_and_ask(wire::Op::cuMemFreeAsync, body);
    if (result == CUDA_SUCCESS && capture != nullptr) {
      capture->with_graph([](Graph& graph) { graph.has_memory = true; });
    }
    return result;
  }
  auto range = memory_map().remove(dptr, MemoryKind::POOL);
  const bool is_of_pool = range.has_value();
  // Memory of cuMemAlloc: whether it may is the driver's to say.
  if (!is_of_pool) range = memory_map().remove(dptr, MemoryKind::DEVICE);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = is_of_pool ? free_of_pool(enqueue, *range)
                                     : enqueue.submit_and_ask(wire::Op::cuMemFreeAsync, body);
  if (result != CUDA_SUCCESS) memory_map().add(*range);
  if (result == CUDA_SUCCESS && is_of_pool && gives_back(range->pool)) {
    DriverWaits::memory().add(enqueue.stream());
  }
  return result;
}

}  // namespace kvgpu::guest
