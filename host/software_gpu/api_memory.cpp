// SPDX-License-Identifier: Apache-2.0
// Allocation and page-locked memory.
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
  Device* device;
  const auto allocation = Driver::instance().find(address, &device);
  if (!allocation || allocation->base != address) return unknown;
  context->drain();
  if (device != &context->device) device->context.drain();
  if (device->memory.release(address, first, second) != CUDA_SUCCESS) return unknown;
  return finish_wait(*context);
}

/// Every device may use it.
CUresult release_managed(uint64_t address) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  Driver& driver = Driver::instance();
  const auto allocation = driver.find(address);
  const bool is_variable = allocation && allocation->flags == 0;
  if (!allocation || allocation->base != address || is_variable) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& device : driver.devices) device->context.drain();
  context->drain();
  RETURN_IF_FAILED(driver.release_managed(address));
  return finish_wait(*context);
}

}  // namespace

SOFTWARE_GPU_API cuMemAlloc_v2(CUdeviceptr* pointer, size_t n_bytes) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (!pointer) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  RETURN_IF_FAILED(allocate(MemoryKind::DEVICE, n_bytes, 0, &address));
  *pointer = address;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width,
                                    size_t height, unsigned element) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!pointer || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (width > SIZE_MAX / 2 / height) return CUDA_ERROR_INVALID_VALUE;
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
  const auto allocation = Driver::instance().find(pointer);
  if (allocation && allocation->kind == MemoryKind::MANAGED) return release_managed(pointer);
  const bool imported = allocation && is_pool_import(*allocation);
  return release(pointer, MemoryKind::DEVICE, imported ? MemoryKind::IMPORTED : MemoryKind::DEVICE,
                 CUDA_ERROR_INVALID_VALUE);
}

SOFTWARE_GPU_API cuMemAllocManaged(CUdeviceptr* pointer, size_t n_bytes, unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (!pointer || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  RETURN_IF_FAILED(
      Driver::instance().allocate_managed(context->device.memory, n_bytes, flags, &address));
  *pointer = address;
  return CUDA_SUCCESS;
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
  RETURN_IF_FAILED(check_capture_safe(*context));
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
  RETURN_IF_FAILED(check_capture_safe(*context));
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
  const auto allocation = Driver::instance().find(reinterpret_cast<uint64_t>(pointer));
  if (!allocation || !is_host(*allocation)) return CUDA_ERROR_INVALID_VALUE;
  *device_pointer = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemHostGetFlags(unsigned* flags, void* pointer) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  const auto allocation = Driver::instance().find(reinterpret_cast<uint64_t>(pointer));
  if (!allocation || allocation->kind != MemoryKind::HOST) return CUDA_ERROR_INVALID_VALUE;
  *flags = allocation->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* n_bytes, CUdeviceptr pointer) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto mapping = Driver::instance().virtual_memory.mapping_of(pointer);
  const auto allocation = Driver::instance().find(pointer);
  if (!allocation && !mapping) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = mapping ? mapping->base : allocation->base;
  if (n_bytes) *n_bytes = mapping ? mapping->size_bytes : allocation->size_bytes;
  return CUDA_SUCCESS;
}
