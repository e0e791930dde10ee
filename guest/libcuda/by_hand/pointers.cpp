// SPDX-License-Identifier: Apache-2.0
// What pointers are.
#include <cstring>

#include "generated/api.gen.h"
#include "memory_map.h"
#include "refuse.h"
#include "session.h"

namespace kvgpu::guest {

namespace {

// One attribute of a pointer that is CUDA memory.
CUresult read_attribute(void* data, CUpointer_attribute attribute, const MemoryRange& range,
                        uint64_t address) {
  const auto put = [data](auto value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  const bool pinned = range.is_host();
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
