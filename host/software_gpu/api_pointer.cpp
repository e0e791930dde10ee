// SPDX-License-Identifier: Apache-2.0
// Questions about pointers.
#include <cstring>

#include "api.h"

using namespace software_gpu;

namespace {

/// What an address belongs to.
struct Pointed {
  Device* device = nullptr;
  std::shared_ptr<const Allocation> allocation;  // null: no device may access it
  std::shared_ptr<const Mapping> mapping;        // of virtual memory
  uint64_t range_base = 0, range_bytes = 0;      // what was asked for
  uint64_t mapped_base = 0, mapped_bytes = 0;    // what is there
  uint64_t buffer_id = 0, block_id = 0;
  MemoryKind kind = MemoryKind::VIRTUAL;
};

bool look_up(uint64_t address, Pointed* p) {
  Driver& driver = Driver::instance();
  p->allocation = driver.find(address, &p->device);
  if (p->allocation && p->allocation->kind != MemoryKind::VIRTUAL) {
    const Allocation& a = *p->allocation;
    p->kind = a.kind;
    p->range_base = p->mapped_base = a.base;
    p->range_bytes = a.size_bytes;
    p->mapped_bytes = a.mapped_bytes;
    p->buffer_id = p->block_id = a.buffer_id;
    return true;
  }
  // As driver 580: addresses that are only reserved have no attributes.
  p->mapping = driver.virtual_memory.mapping_of(address);
  if (!p->mapping) return false;
  const auto reservation = driver.virtual_memory.reservation_of(address);
  if (!reservation) return false;
  p->range_base = reservation->base;
  p->range_bytes = reservation->size_bytes;
  const Physical& physical = *p->mapping->physical;
  const CUmemLocation& location = physical.properties.location;
  const bool is_on_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_on_device) p->kind = MemoryKind::HOST;
  p->device = driver.device(is_on_device ? location.id : 0);
  p->mapped_base = p->mapping->base;
  p->mapped_bytes = p->mapping->size_bytes;
  p->buffer_id = p->mapping->id;
  p->block_id = physical.id;
  return true;
}

/// What the device of the current context may do, without one the device of the memory.
CUmemAccess_flags access_flags(const Pointed& p, uint64_t address) {
  const Context* context = current_context();
  const Device& device = context ? context->device : *p.device;
  if (!p.mapping)
    return context && !current_context()->visible_memory()->find(address)
               ? CU_MEM_ACCESS_FLAGS_PROT_NONE
               : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const auto seen = device.memory.find(address);
  if (!seen) return CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return seen->read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUmemAllocationHandleType handle_types(const Pointed& p) {
  if (p.mapping) return p.mapping->physical->properties.requestedHandleTypes;
  return p.allocation->pool && p.allocation->pool->file ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                        : CU_MEM_HANDLE_TYPE_NONE;
}

bool is_host(MemoryKind kind) { return kind == MemoryKind::HOST || kind == MemoryKind::REGISTERED; }

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer,
                           const Pointed& p) {
  const auto answer = [&]<class T>(T value) {
    memcpy(data, static_cast<const void*>(&value), sizeof(T));
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Virtual memory and pools belong to a device, managed variables to all: to no context.
      if (p.kind == MemoryKind::MANAGED && p.allocation->flags == 0)
        return answer(static_cast<CUcontext>(nullptr));
      return answer(p.mapping || p.allocation->pool ? nullptr : p.allocation->owner);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer(
          static_cast<unsigned>(is_host(p.kind) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return p.allocation ? answer(pointer) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!is_host(p.kind) && p.kind != MemoryKind::MANAGED) return CUDA_ERROR_INVALID_VALUE;
      return answer(pointer);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return answer(unsigned{p.kind == MemoryKind::MANAGED});
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return answer(static_cast<unsigned long long>(p.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer(unsigned{p.kind == MemoryKind::MANAGED});
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer(p.device->ordinal);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer(
          unsigned{p.allocation && is_ipc_capable(*p.allocation) && p.allocation->backing->file()});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer(p.range_base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer(static_cast<size_t>(p.range_bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer(1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer(static_cast<unsigned long long>(handle_types(p)));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return answer(0u);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer(p.allocation ? p.allocation->pool.get() : nullptr);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer(access_flags(p, pointer));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return answer(static_cast<size_t>(p.mapped_bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return answer(p.mapped_base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return answer(static_cast<unsigned long long>(p.block_id));
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return answer(0u);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/// How many bytes an attribute has; 0: there is no such attribute. A boolean has four.
size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
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
      return 0;
  }
}

/// Of a pointer that is no CUDA memory, or only reserved, as driver 580 answers.
void answer_of_foreign(void* data, size_t n_bytes, CUpointer_attribute attribute,
                       CUdeviceptr pointer) {
  uint64_t value = 0;
  if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
      attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
    const auto reservation = Driver::instance().virtual_memory.reservation_of(pointer);
    if (!reservation) return;
    const bool is_size = attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE;
    value = is_size ? reservation->size_bytes : reservation->base;
  } else if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
    value = pointer;
  } else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
    value = static_cast<uint32_t>(CU_DEVICE_INVALID);
  }
  memcpy(data, &value, n_bytes);
}

}  // namespace

SOFTWARE_GPU_API cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
  RETURN_IF_FAILED(enter_without_context());
  Pointed pointed;
  if (!data || !look_up(pointer, &pointed)) return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(data, attribute, pointer, pointed);
}

// What a pointer has not, or a pointer that is not CUDA's, is no error here: the answer is nothing.
SOFTWARE_GPU_API cuPointerGetAttributes(unsigned n, CUpointer_attribute* attributes, void** data,
                                        CUdeviceptr pointer) {
  RETURN_IF_FAILED(enter_without_context());
  if (n == 0 || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  Pointed pointed;
  const bool known = look_up(pointer, &pointed);
  for (unsigned i = 0; i < n; ++i) {
    const size_t n_bytes = attribute_bytes(attributes[i]);
    if (n_bytes == 0 || !data[i]) return CUDA_ERROR_INVALID_VALUE;
    if (!known)
      answer_of_foreign(data[i], n_bytes, attributes[i], pointer);
    else if (pointer_attribute(data[i], attributes[i], pointer, pointed) != CUDA_SUCCESS)
      memset(data[i], 0, n_bytes);
  }
  return CUDA_SUCCESS;
}
