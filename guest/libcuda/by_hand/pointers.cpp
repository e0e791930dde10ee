// SPDX-License-Identifier: Apache-2.0
// What pointers are. Answered from the memory map; what only the driver knows of device memory is
// asked of it.
#include <cstring>

#include "call.h"
#include "generated/api.gen.h"
#include "memory_map.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

// Of device memory, which the driver knows by the same address.
CUresult ask_driver(uint64_t* value, CUpointer_attribute attribute, const MemoryRange& range,
                    uint64_t address) {
  const bool is_of_context = !range.is_mapping();
  const Call call(CaptureRule::ALLOWED, is_of_context ? range.context : nullptr,
                  is_of_context ? ContextRule::NEEDED : ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const wire::PointerInfo body{call.context(), address, static_cast<uint32_t>(attribute), 0};
  wire::Value64 out;
  const CUresult result = call.sync(wire::Op::POINTER_INFO, body, &out);
  *value = out.value;
  return result;
}

// A pool is its device's, and so is what is mapped; a managed variable is all devices'.
bool is_of_no_context(const MemoryRange& range) {
  return range.kind == MemoryKind::POOL || range.kind == MemoryKind::GRAPH || range.is_mapping() ||
         (range.kind == MemoryKind::MANAGED && range.module != 0);
}

uint64_t pool_of(const MemoryRange& range) {
  if (range.kind != MemoryKind::POOL || range.pool != 0) return range.pool;
  CUmemoryPool pool = nullptr;
  (void)device_get_default_mem_pool(&pool, range.context->device);
  return to_wire(pool);
}

// CUDA 13.0 cuda.h, CUpointer_attribute: the values that are four bytes.
size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return 4;
    default:
      return 8;
  }
}

// What was asked for there, whether or not something is mapped. False: nothing was.
bool read_reservation(uint64_t* value, CUpointer_attribute attribute, uint64_t address) {
  const auto reservation = memory_map().find_reservation(address);
  if (!reservation) return false;
  const bool is_size = attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE;
  *value = is_size ? reservation->bytes : reservation->begin;
  return true;
}

// One attribute of a pointer that is CUDA memory, as a number.
CUresult read_attribute(uint64_t* value, CUpointer_attribute attribute, const MemoryRange& range,
                        uint64_t address) {
  const auto put = [value](uint64_t number) {
    *value = number;
    return CUDA_SUCCESS;
  };
  const bool alias = range.kind == MemoryKind::ALIAS;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(is_of_no_context(range) ? 0 : range.context->handle);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(range.is_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: {
      const bool is_closed = range.kind == MemoryKind::VIRTUAL && range.readable == 0;
      const uint64_t on_gpu = is_closed ? 0 : range.gpu_address(address, 1);
      return on_gpu == 0 ? CUDA_ERROR_INVALID_VALUE : put(on_gpu);
    }
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!range.is_host() && range.kind != MemoryKind::MANAGED) return CUDA_ERROR_INVALID_VALUE;
      if (range.is_mapping() && range.host_access == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      return put(alias ? range.reached_begin + (address - range.begin) : address);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return static_cast<CUresult>(refuse_part("CU_POINTER_ATTRIBUTE_P2P_TOKENS"));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(range.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(range.buffer_id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(static_cast<uint32_t>(range.context->device));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (read_reservation(value, attribute, address)) return CUDA_SUCCESS;
      return put(attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE ? range.bytes : range.begin);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(1);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(pool_of(range));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      if (range.kind != MemoryKind::DEVICE) return put(0);
      return ask_driver(value, attribute, range, address);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(range.kind == MemoryKind::MANAGED ? 1 : 0);
    // Not served, so not to be had.
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(0);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(range.handle_types);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      if (range.kind == MemoryKind::VIRTUAL_HOST && range.readable == 0) return put(0);
      if (range.is_host()) return put(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      return ask_driver(value, attribute, range, address);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      if (range.is_host()) return put(range.bytes);
      return ask_driver(value, attribute, range, address);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      if (range.is_host()) return put(range.begin);
      return ask_driver(value, attribute, range, address);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      if (range.is_host()) return put(range.buffer_id);
      return ask_driver(value, attribute, range, address);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      if (range.is_host() || range.kind == MemoryKind::MANAGED) return put(0);
      return ask_driver(value, attribute, range, address);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Of a pointer that is no CUDA memory, or only reserved, as driver 580 answers. False: it writes
// nothing.
bool attribute_of_foreign(uint64_t* value, CUpointer_attribute attribute, uint64_t address) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return read_reservation(value, attribute, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *value = address;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *value = static_cast<uint32_t>(-2);
      return true;
    default:
      *value = 0;
      return true;
  }
}

}  // namespace

CUresult pointer_get_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto range = memory_map().find(ptr);
  // As driver 580: addresses that are only reserved have no attributes.
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  uint64_t value = 0;
  const CUresult result = read_attribute(&value, attribute, *range, ptr);
  if (result == CUDA_SUCCESS) std::memcpy(data, &value, attribute_bytes(attribute));
  return result;
}

CUresult pointer_get_attributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr ptr) {
  if (numAttributes == 0 || attributes == nullptr || data == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto range = memory_map().find(ptr);
  for (unsigned i = 0; i < numAttributes; ++i) {
    if (attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT ||
        attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // CUDA 13.0 cuda.h: what does not apply to the pointer becomes null, without an error.
    uint64_t value = 0;
    if (range) {
      const CUresult result = read_attribute(&value, attributes[i], *range, ptr);
      if (result == CUDA_ERROR_NOT_SUPPORTED) return result;
      if (result != CUDA_SUCCESS) value = 0;
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
      return CUDA_ERROR_INVALID_VALUE;
    } else if (!attribute_of_foreign(&value, attributes[i], ptr)) {
      continue;
    }
    std::memcpy(data[i], &value, attribute_bytes(attributes[i]));
  }
  return CUDA_SUCCESS;
}

CUresult pointer_set_attribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = unsafe_call_allowed()) return bad;
  const auto range = memory_map().find(ptr);
  // CUDA 13.0 cuda.h: the only one that can be set.
  if (!range || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  memory_map().set_sync_memops(ptr, *static_cast<const unsigned*>(value) != 0);
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
