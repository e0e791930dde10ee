// SPDX-License-Identifier: Apache-2.0
// Allocation, page-locked memory and questions about pointers.
#include <cstring>

#include "api.h"

using namespace software_gpu;

namespace {

constexpr size_t PITCH_BYTES = 512;

bool is_host(const Allocation& allocation) {
  return allocation.kind == MemoryKind::HOST || allocation.kind == MemoryKind::REGISTERED;
}

CUresult allocate(MemoryKind kind, size_t n_bytes, unsigned flags, uint64_t* address) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  return context->device.memory.allocate(n_bytes, kind, flags, address);
}

/// Freeing waits for the device, as natively: work that still uses the memory ends first.
CUresult release(uint64_t address, MemoryKind first, MemoryKind second, CUresult unknown) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  const auto allocation = context->device.memory.find(address);
  if (!allocation || allocation->base != address) return unknown;
  context->drain();
  if (context->device.memory.release(address, first, second) != CUDA_SUCCESS) return unknown;
  return finish_wait(*context);
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer,
                           const Device& device, const Allocation& allocation) {
  const auto answer = [&]<class T>(T value) {
    memcpy(data, static_cast<const void*>(&value), sizeof(T));
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer(&device.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer(
          static_cast<unsigned>(is_host(allocation) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return answer(pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!is_host(allocation)) return CUDA_ERROR_INVALID_VALUE;
      return answer(pointer);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return answer(0u);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return answer(static_cast<unsigned long long>(allocation.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer(0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer(device.ordinal);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer(0u);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer(allocation.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer(static_cast<size_t>(allocation.size_bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer(1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer(0ull);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return answer(0u);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer(static_cast<void*>(nullptr));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return answer(static_cast<size_t>(allocation.mapped_bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return answer(allocation.base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return answer(static_cast<unsigned long long>(allocation.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return answer(0u);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

SOFTWARE_GPU_API cuMemAlloc_v2(CUdeviceptr* pointer, size_t n_bytes) {
  if (!pointer) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  RETURN_IF_FAILED(allocate(MemoryKind::DEVICE, n_bytes, 0, &address));
  *pointer = address;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width,
                                    size_t height, unsigned element) {
  if (!pointer || !pitch || width == 0 || height == 0 || width > SIZE_MAX / 2 / height)
    return CUDA_ERROR_INVALID_VALUE;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  const size_t row_bytes = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
  uint64_t address = 0;
  RETURN_IF_FAILED(allocate(MemoryKind::DEVICE, row_bytes * height, 0, &address));
  *pointer = address;
  *pitch = row_bytes;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemFree_v2(CUdeviceptr pointer) {
  if (pointer == 0) return enter_without_context();
  Device* const device = Driver::instance().device_of(pointer);
  if (const auto of_graph = device ? device->graph_memories.find(pointer) : nullptr) {
    if (!device->graph_memories.free(*of_graph)) return CUDA_ERROR_INVALID_VALUE;
    return cuCtxSynchronize();
  }
  return release(pointer, MemoryKind::DEVICE, MemoryKind::DEVICE, CUDA_ERROR_INVALID_VALUE);
}

SOFTWARE_GPU_API cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!free_bytes || !total_bytes) return CUDA_ERROR_INVALID_VALUE;
  *free_bytes = context->device.memory.free_bytes();
  *total_bytes = context->device.memory.total_bytes();
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemHostAlloc(void** pointer, size_t n_bytes, unsigned flags) {
  if (!pointer || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  RETURN_IF_FAILED(allocate(MemoryKind::HOST, n_bytes, flags, &address));
  *pointer = reinterpret_cast<void*>(address);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemAllocHost_v2(void** pointer, size_t n_bytes) {
  return cuMemHostAlloc(pointer, n_bytes, 0);
}

SOFTWARE_GPU_API cuMemFreeHost(void* pointer) {
  return release(reinterpret_cast<uint64_t>(pointer), MemoryKind::HOST, MemoryKind::HOST,
                 CUDA_ERROR_INVALID_VALUE);
}

static CUresult unregister_at(Device& device, void* pointer) {
  return device.memory.release(reinterpret_cast<uint64_t>(pointer), MemoryKind::REGISTERED,
                               MemoryKind::REGISTERED);
}

SOFTWARE_GPU_API cuMemHostRegister_v2(void* pointer, size_t n_bytes, unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (flags > 15) return CUDA_ERROR_INVALID_VALUE;
  // With unified addressing registered memory is portable, whatever the flags say.
  auto& devices = Driver::instance().devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    const CUresult result = devices[i]->memory.register_host(pointer, n_bytes, flags);
    if (result == CUDA_SUCCESS) continue;
    while (i-- > 0) (void)unregister_at(*devices[i], pointer);
    return result;
  }
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemHostUnregister(void* pointer) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  CUresult result = CUDA_SUCCESS;
  for (const auto& device : Driver::instance().devices) {
    if (unregister_at(*device, pointer) != CUDA_SUCCESS) {
      result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
  }
  return result;
}

SOFTWARE_GPU_API cuMemHostGetDevicePointer_v2(CUdeviceptr* device_pointer, void* pointer,
                                              unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!device_pointer || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto allocation = context->device.memory.find(reinterpret_cast<uint64_t>(pointer));
  if (!allocation || !is_host(*allocation)) return CUDA_ERROR_INVALID_VALUE;
  *device_pointer = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* n_bytes, CUdeviceptr pointer) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto allocation = context->device.memory.find(pointer);
  if (!allocation) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = allocation->base;
  if (n_bytes) *n_bytes = allocation->size_bytes;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
  RETURN_IF_FAILED(enter_without_context());
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = Driver::instance().device_of(pointer);
  const auto allocation = device ? device->memory.find(pointer) : nullptr;
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(data, attribute, pointer, *device, *allocation);
}
