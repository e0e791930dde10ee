// SPDX-License-Identifier: Apache-2.0
// Device and pinned memory, and what pointers are.
#include <cstring>

#include "address_space.h"
#include "call.h"
#include "generated/api.gen.h"
#include "log.h"
#include "memory_limit.h"
#include "memory_map.h"
#include "pinned_heap.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

CUresult adopt(const Call& call, uint64_t dptr, uint64_t bytes) {
  if (!is_reserved_for_devices(dptr, bytes)) {
    log(Level::WARNING,
        "the device address 0x%llx is not free in this process: the allocation is refused",
        static_cast<unsigned long long>(dptr));
    (void)call.sync(wire::Op::cuMemFree_v2, wire::MemFree{call.context(), dptr});
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  memory_map().add({dptr, bytes, MemoryKind::DEVICE, &call.context_object(), 0, 0});
  return CUDA_SUCCESS;
}

// One attribute of a pointer that is CUDA memory.
CUresult read_attribute(void* data, CUpointer_attribute attribute, const MemoryRange& range,
                        uint64_t address) {
  const auto put = [data](auto value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  const bool pinned = range.kind == MemoryKind::PINNED;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(from_wire<CUcontext>(range.context->handle));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(static_cast<unsigned>(pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(CUdeviceptr{address});
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return pinned ? put(reinterpret_cast<void*>(address)) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(range.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(range.context->device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(0u);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(reinterpret_cast<void*>(range.begin));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(size_t{range.bytes});
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(1u);
    default:
      return static_cast<CUresult>(refuse_part("an attribute of cuPointerGetAttribute"));
  }
}

size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return 4;
    default:
      return 8;
  }
}

}  // namespace

CUresult mem_alloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  if (dptr == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Allowance allowance(call, bytesize);
  if (allowance.status() != CUDA_SUCCESS) return allowance.status();
  wire::MemAllocated out;
  const wire::MemAlloc body{call.context(), bytesize};
  CUresult result = call.sync(wire::Op::cuMemAlloc_v2, body, &out);
  if (result == CUDA_SUCCESS) result = adopt(call, out.dptr, bytesize);
  if (result == CUDA_SUCCESS) *dptr = out.dptr;
  return result;
}

CUresult mem_alloc_pitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  if (dptr == nullptr || pPitch == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  constexpr size_t ROW_UNIT = 512;  // at least what the pitch is rounded to
  const Allowance allowance(call, (WidthInBytes + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT * Height);
  if (allowance.status() != CUDA_SUCCESS) return allowance.status();
  wire::MemAllocatedPitch out;
  const wire::MemAllocPitch body{call.context(), WidthInBytes, Height, ElementSizeBytes, 0};
  CUresult result = call.sync(wire::Op::cuMemAllocPitch_v2, body, &out);
  if (result == CUDA_SUCCESS) result = adopt(call, out.dptr, out.pitch_bytes * Height);
  if (result != CUDA_SUCCESS) return result;
  *dptr = out.dptr;
  *pPitch = out.pitch_bytes;
  return CUDA_SUCCESS;
}

CUresult mem_free_v2(CUdeviceptr dptr) {
  if (dptr == 0) return CUDA_SUCCESS;
  const auto known = memory_map().find(dptr);
  const Call call(CaptureRule::FORBIDDEN, known ? known->context : nullptr);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto range = memory_map().remove(dptr, MemoryKind::DEVICE);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = call.sync(wire::Op::cuMemFree_v2, wire::MemFree{call.context(), dptr});
  return result;
}

CUresult mem_get_address_range_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto range = memory_map().find(dptr);
  if (!range) return CUDA_ERROR_NOT_FOUND;
  if (pbase != nullptr) *pbase = range->begin;
  if (psize != nullptr) *psize = range->bytes;
  return CUDA_SUCCESS;
}

CUresult mem_host_alloc(void** pp, size_t bytesize, unsigned int Flags) {
  constexpr unsigned KNOWN =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (pp == nullptr || (Flags & ~KNOWN) != 0) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (bytesize == 0) {
    *pp = nullptr;
    return CUDA_SUCCESS;
  }
  uint64_t address;
  if (const CUresult bad = PinnedHeap::get().allocate(bytesize, &address)) return bad;
  // CUDA 13.0 cuda.h: with unified addressing all of it is portable and mapped.
  memory_map().add({address, bytesize, MemoryKind::PINNED, &call.context_object(),
                    Flags | CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP, 0});
  *pp = reinterpret_cast<void*>(address);
  return CUDA_SUCCESS;
}

CUresult mem_alloc_host_v2(void** pp, size_t bytesize) { return mem_host_alloc(pp, bytesize, 0); }

CUresult mem_free_host(void* p) {
  if (p == nullptr) return CUDA_SUCCESS;
  const auto address = reinterpret_cast<uint64_t>(p);
  const auto known = memory_map().find(address);
  const Call call(CaptureRule::FORBIDDEN, known ? known->context : nullptr);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (!memory_map().remove(address, MemoryKind::PINNED)) return CUDA_ERROR_INVALID_VALUE;
  // The GPU may still be using it.
  const CUresult result = call.sync(wire::Op::HOST_SYNC, wire::HostSync{call.context()});
  PinnedHeap::get().free(address);
  return result;
}

CUresult mem_host_get_device_pointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  if (pdptr == nullptr || p == nullptr || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto range = memory_map().find(reinterpret_cast<uint64_t>(p));
  if (!range || range->kind != MemoryKind::PINNED) return CUDA_ERROR_INVALID_VALUE;
  *pdptr = reinterpret_cast<CUdeviceptr>(p);  // one address (docs/architecture.md)
  return CUDA_SUCCESS;
}

CUresult mem_host_get_flags(unsigned int* pFlags, void* p) {
  if (pFlags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto range = memory_map().find(reinterpret_cast<uint64_t>(p));
  if (!range || range->kind != MemoryKind::PINNED) return CUDA_ERROR_INVALID_VALUE;
  *pFlags = range->flags;
  return CUDA_SUCCESS;
}

CUresult pointer_get_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Session::get().is_open()) return CUDA_ERROR_NOT_INITIALIZED;
  const auto range = memory_map().find(ptr);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  return read_attribute(data, attribute, *range, ptr);
}

CUresult pointer_get_attributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr ptr) {
  if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Session::get().is_open()) return CUDA_ERROR_NOT_INITIALIZED;
  const auto range = memory_map().find(ptr);
  for (unsigned i = 0; i < numAttributes; ++i) {
    // CUDA 13.0 cuda.h: what does not apply to the pointer becomes null, without an error.
    const CUresult result =
        range ? read_attribute(data[i], attributes[i], *range, ptr) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_ERROR_NOT_SUPPORTED) return result;
    if (result != CUDA_SUCCESS) std::memset(data[i], 0, attribute_bytes(attributes[i]));
    if (!range && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      const int none = -2;
      std::memcpy(data[i], &none, sizeof none);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
