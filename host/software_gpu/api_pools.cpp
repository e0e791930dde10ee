// SPDX-License-Identifier: Apache-2.0
// Memory pools, and allocation in stream order. An allocation is there at once; a free happens when
// the stream comes to it.
#include <algorithm>

#include "api.h"

using namespace software_gpu;

namespace {

/// For calls that are potentially unsafe during a capture.
CUresult check_safe() {
  RETURN_IF_FAILED(enter_without_context());
  Context* const context = current_context();
  return context ? check_capture_safe(*context) : CUDA_SUCCESS;
}

CUresult find_to_use(CUmemoryPool handle, std::shared_ptr<MemPool>* pool) {
  RETURN_IF_FAILED(check_safe());
  return find(handle, pool);
}

CUmemoryPool handle_of(const std::shared_ptr<MemPool>& pool) {
  return reinterpret_cast<CUmemoryPool>(pool.get());
}

std::shared_ptr<MemPool> default_pool(Device& device) {
  std::lock_guard lock(device.mutex);
  if (!device.default_pool) {
    device.default_pool = std::make_shared<MemPool>(device, 0);
    Driver::instance().pools.add(device.default_pool);
  }
  return device.default_pool;
}

std::shared_ptr<MemPool> current_pool(Device& device) {
  {
    std::lock_guard lock(device.mutex);
    if (auto current = device.current_pool.lock()) return current;
  }
  return default_pool(device);
}

CUresult capture_allocation(Context& context, Stream& stream, size_t n_bytes, const Device& device,
                            CUdeviceptr* pointer) {
  CUDA_MEM_ALLOC_NODE_PARAMS p{};
  p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal};
  p.bytesize = n_bytes;
  Operation operation;
  RETURN_IF_FAILED(make_alloc(p, &operation));
  *pointer = operation.params->memory->address;
  return context.submit(stream, std::move(operation));
}

/// From this pool, or from the current one of the device.
CUresult allocate(CUdeviceptr* pointer, size_t n_bytes, const CUmemoryPool* named,
                  CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  std::shared_ptr<MemPool> pool;
  if (!pointer) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  bool capturing;
  {
    std::lock_guard lock(context->order_mutex);
    capturing = stream->capture != nullptr;
  }
  if (!capturing) RETURN_IF_FAILED(check_capture_safe(*context));
  if (named)
    RETURN_IF_FAILED(find(*named, &pool));
  else
    pool = current_pool(context->device);
  if (pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
  if (capturing) return capture_allocation(*context, *stream, n_bytes, pool->device, pointer);
  auto charge = pool->charge(n_bytes);
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t address = 0;
  RETURN_IF_FAILED(
      pool->device.memory.allocate(n_bytes, MemoryKind::DEVICE, 0, &address, std::move(charge)));
  *pointer = address;
  return CUDA_SUCCESS;
}

bool is_flag(CUmemPool_attribute attribute) {
  return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
         attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

}  // namespace

std::shared_ptr<MemPool> MemPool::charge(uint64_t n_bytes) {
  std::lock_guard lock(mutex);
  if (max_bytes != 0 && n_bytes > max_bytes - std::min(max_bytes, used_bytes)) return nullptr;
  used_bytes += n_bytes;
  high_bytes = std::max(high_bytes, used_bytes);
  reserved_bytes = std::max(reserved_bytes, used_bytes);
  reserved_high_bytes = std::max(reserved_high_bytes, reserved_bytes);
  return {this, [self = shared_from_this(), n_bytes](MemPool*) {
            std::lock_guard given_back(self->mutex);
            self->used_bytes -= n_bytes;
          }};
}

void MemPool::trim(uint64_t n_bytes) {
  std::lock_guard lock(mutex);
  reserved_bytes = std::max(used_bytes, std::min(reserved_bytes, n_bytes));
}

SOFTWARE_GPU_API cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  Device* device;
  if (!handle || !properties) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(check_safe());
  if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  RETURN_IF_FAILED(find(properties->location.id, &device));
  auto pool = std::make_shared<MemPool>(*device, properties->maxSize);
  if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    pool->file = SharedFile::create(SharedFile::Use::POOL, device->ordinal, max_file_bytes());
    if (!pool->file) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->files = std::make_shared<FileMemory>(pool->file);
  }
  *handle = handle_of(pool);
  Driver::instance().pools.add(std::move(pool));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemPoolDestroy(CUmemoryPool handle) {
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find_to_use(handle, &pool));
  if (default_pool(pool->device) == pool) return CUDA_ERROR_INVALID_VALUE;
  Driver::instance().pools.take(handle);
  std::lock_guard lock(pool->device.mutex);
  if (pool->device.current_pool.lock() == pool) pool->device.current_pool.reset();
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemPoolTrimTo(CUmemoryPool handle, size_t n_bytes) {
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find_to_use(handle, &pool));
  pool->trim(n_bytes);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void* value) {
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find_to_use(handle, &pool));
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool->mutex);
  if (is_flag(attribute)) {
    pool->flags[attribute] = *static_cast<int*>(value) != 0;
    return CUDA_SUCCESS;
  }
  const uint64_t number = *static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = number;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (number != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high_bytes = pool->reserved_bytes;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->high_bytes = pool->used_bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

SOFTWARE_GPU_API cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void* value) {
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find_to_use(handle, &pool));
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool->mutex);
  auto* const number = static_cast<cuuint64_t*>(value);
  if (is_flag(attribute)) {
    const auto found = pool->flags.find(attribute);
    *static_cast<int*>(value) = found == pool->flags.end() || found->second;
    return CUDA_SUCCESS;
  }
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *number = pool->release_threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *number = pool->reserved_bytes;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *number = pool->used_bytes;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *number = pool->reserved_high_bytes;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *number = pool->high_bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

SOFTWARE_GPU_API cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t n) {
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find_to_use(handle, &pool));
  if (!map && n != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < n; ++i) {
    if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    const Device* device = Driver::instance().device(map[i].location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    const auto flags = map[i].flags;
    if (flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
    // A device always reaches its own memory.
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
        (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE || device == &pool->device))
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(pool->mutex);
  for (size_t i = 0; i < n; ++i) {
    const Device* device = Driver::instance().device(map[i].location.id);
    if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      pool->guests.insert(device);
    else
      pool->guests.erase(device);
  }
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                    CUmemLocation* location) {
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find_to_use(handle, &pool));
  if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  const Device* device = Driver::instance().device(location->id);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool->mutex);
  *flags = device == &pool->device || pool->guests.contains(device)
               ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetDefaultMemPool(CUmemoryPool* handle, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  *handle = handle_of(default_pool(*device));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetMemPool(CUmemoryPool* handle, CUdevice ordinal) {
  Device* device;
  if (!handle || find(ordinal, &device)) return CUDA_ERROR_INVALID_VALUE;  // as driver 580
  *handle = handle_of(current_pool(*device));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  Device* device;
  if (find(ordinal, &device)) return CUDA_ERROR_INVALID_VALUE;  // as driver 580
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find_to_use(handle, &pool));
  if (&pool->device != device || pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(device->mutex);
  device->current_pool = pool;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemAllocAsync(CUdeviceptr* pointer, size_t n_bytes, CUstream handle) {
  return allocate(pointer, n_bytes, nullptr, handle);
}

SOFTWARE_GPU_API cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t n_bytes, CUmemoryPool pool,
                                         CUstream handle) {
  return allocate(pointer, n_bytes, &pool, handle);
}

SOFTWARE_GPU_API cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  std::shared_ptr<Graph> captured;
  {
    std::lock_guard lock(context->order_mutex);
    if (stream->capture) captured = stream->capture->graph;
  }
  if (captured) {
    Operation node;
    RETURN_IF_FAILED(make_free(context->device, *captured, pointer, &node));
    return context->submit(*stream, std::move(node));
  }
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (pointer == 0) return CUDA_SUCCESS;
  if (const auto of_graph = context->device.graph_memories.find(pointer))
    return context->device.graph_memories.free(*of_graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  Device* device;
  const auto allocation = Driver::instance().find(pointer, &device);
  if (!allocation || allocation->base != pointer) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->kind == MemoryKind::MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  if (allocation->kind != MemoryKind::DEVICE && !is_pool_import(*allocation))
    return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  operation.run = [pointer, device](Context&) {
    return device->memory.release(pointer, MemoryKind::DEVICE, MemoryKind::IMPORTED);
  };
  return context->submit(*stream, std::move(operation));
}
