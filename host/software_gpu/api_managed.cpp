// SPDX-License-Identifier: Apache-2.0
// Advice about managed memory. All memory here is the host's and every device reaches it at any
// time, so that nothing moves: what was said is kept and can be asked for. Discarded pages are
// given back.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "api.h"

using namespace software_gpu;

namespace {

constexpr uint64_t PAGE_BYTES = 4096;

CUresult check_range(CUdeviceptr address, size_t n_bytes) {
  const auto allocation = Driver::instance().find(address);
  return allocation && allocation->kind == MemoryKind::MANAGED && n_bytes != 0 &&
                 n_bytes <= allocation->size_bytes - (address - allocation->base)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

/// The node that a thread runs on is the only one there is.
CUmemLocation resolved(CUmemLocation location) {
  if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
    return {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  return location;
}

CUresult check_location(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return Driver::instance().device(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/// Of the calls before CUDA 13, which name a device or CU_DEVICE_CPU.
CUmemLocation location_of(CUdevice device) {
  return {device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
          device == CU_DEVICE_CPU ? 0 : device};
}

/// And how they answer it.
int device_of(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id;
    case CU_MEM_LOCATION_TYPE_HOST:
      return CU_DEVICE_CPU;
    default:
      return CU_DEVICE_INVALID;
  }
}

CUresult advise(CUdeviceptr address, size_t n_bytes, CUmem_advise advice, CUmemLocation location) {
  RETURN_IF_FAILED(enter_without_context());
  RETURN_IF_FAILED(check_range(address, n_bytes));
  AdviceMap& all = Driver::instance().advice;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      all.change(address, n_bytes,
                 [=](Advice& a) { a.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      RETURN_IF_FAILED(check_location(location));
      all.change(address, n_bytes, [=](Advice& a) { a.preferred = location; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      all.change(address, n_bytes, [](Advice& a) { a.preferred = Advice().preferred; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: {
      RETURN_IF_FAILED(check_location(location));
      if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;  // the host has it
      const uint32_t bit = 1u << location.id;
      const bool set = advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
      all.change(address, n_bytes, [=](Advice& a) {
        a.accessed_by = set ? a.accessed_by | bit : a.accessed_by & ~bit;
      });
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/// One range of a batch, or of a single call.
struct Range {
  uint64_t address, n_bytes;
  bool discard = false;
  CUmemLocation to = {CU_MEM_LOCATION_TYPE_INVALID, 0};  // where it is prefetched to, if at all
};

/// The whole pages of a range lose what is in them.
void discard(const Range& range) {
  const auto allocation = Driver::instance().find(range.address);
  if (!allocation || allocation->kind != MemoryKind::MANAGED) return;  // freed meanwhile
  const uint64_t begin = (range.address + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
  const uint64_t end = (range.address + range.n_bytes) & ~(PAGE_BYTES - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

CUresult enqueue(std::vector<Range> ranges, CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  {
    std::lock_guard lock(context->order_mutex);
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  for (const Range& range : ranges) {
    RETURN_IF_FAILED(check_range(range.address, range.n_bytes));
    if (range.to.type != CU_MEM_LOCATION_TYPE_INVALID) RETURN_IF_FAILED(check_location(range.to));
  }
  for (const Range& range : ranges)
    if (range.to.type != CU_MEM_LOCATION_TYPE_INVALID)
      Driver::instance().advice.change(range.address, range.n_bytes,
                                       [&](Advice& a) { a.prefetched = range.to; });
  Operation operation;
  operation.run = [ranges = std::move(ranges)](Context&) {
    for (const Range& range : ranges)
      if (range.discard) discard(range);
    return CUDA_SUCCESS;
  };
  return context->submit(*stream, std::move(operation));
}

CUresult make_batch(const CUdeviceptr* pointers, const size_t* sizes, size_t n, bool discards,
                    unsigned long long flags, CUstream stream, std::vector<Range>* ranges) {
  if (!pointers || !sizes || n == 0 || flags != 0 || stream == nullptr ||
      stream == CU_STREAM_LEGACY)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < n; ++i) ranges->push_back({pointers[i], sizes[i], discards});
  return CUDA_SUCCESS;
}

/// Each location is for the ranges from its index up to the next one's.
CUresult place(const CUmemLocation* locations, const size_t* first, size_t n,
               std::vector<Range>* ranges) {
  if (!locations || !first || n == 0 || n > ranges->size() || first[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < n; ++i) {
    const size_t end = i + 1 < n ? first[i + 1] : ranges->size();
    if (end <= first[i] || end > ranges->size() ||
        locations[i].type == CU_MEM_LOCATION_TYPE_INVALID)
      return CUDA_ERROR_INVALID_VALUE;
    for (size_t k = first[i]; k < end; ++k) (*ranges)[k].to = resolved(locations[i]);
  }
  return CUDA_SUCCESS;
}

CUresult answer(void* data, size_t n_bytes, const void* value, size_t value_bytes) {
  if (n_bytes != value_bytes) return CUDA_ERROR_INVALID_VALUE;
  memcpy(data, value, value_bytes);
  return CUDA_SUCCESS;
}

CUresult answer(void* data, size_t n_bytes, int value) {
  return answer(data, n_bytes, &value, sizeof value);
}

CUresult answer_accessed_by(void* data, size_t n_bytes, uint32_t devices) {
  if (n_bytes == 0 || n_bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<int> ids;
  for (int id = 0; id < 32; ++id)
    if (devices >> id & 1) ids.push_back(id);
  ids.resize(n_bytes / sizeof(int), CU_DEVICE_INVALID);
  memcpy(data, ids.data(), n_bytes);
  return CUDA_SUCCESS;
}

CUresult range_attribute(void* data, size_t n_bytes, CUmem_range_attribute attribute,
                         const Advice& advice) {
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return answer(data, n_bytes, advice.read_mostly);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return answer(data, n_bytes, device_of(advice.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
      return answer_accessed_by(data, n_bytes, advice.accessed_by);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return answer(data, n_bytes, device_of(advice.prefetched));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return answer(data, n_bytes, &advice.preferred.type, sizeof(CUmemLocationType));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return answer(data, n_bytes, advice.preferred.id);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return answer(data, n_bytes, &advice.prefetched.type, sizeof(CUmemLocationType));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return answer(data, n_bytes, advice.prefetched.id);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

#undef cuMemAdvise
SOFTWARE_GPU_API cuMemAdvise(CUdeviceptr pointer, size_t n_bytes, CUmem_advise advice,
                             CUdevice device) {
  return advise(pointer, n_bytes, advice, location_of(device));
}
SOFTWARE_GPU_API cuMemAdvise_v2(CUdeviceptr pointer, size_t n_bytes, CUmem_advise advice,
                                CUmemLocation location) {
  return advise(pointer, n_bytes, advice, resolved(location));
}

#undef cuMemPrefetchAsync
SOFTWARE_GPU_API cuMemPrefetchAsync(CUdeviceptr pointer, size_t n_bytes, CUdevice device,
                                    CUstream stream) {
  return enqueue({{pointer, n_bytes, false, location_of(device)}}, stream);
}
SOFTWARE_GPU_API cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t n_bytes, CUmemLocation location,
                                       unsigned flags, CUstream stream) {
  if (flags != 0 || location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  return enqueue({{pointer, n_bytes, false, resolved(location)}}, stream);
}

SOFTWARE_GPU_API cuMemPrefetchBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t n,
                                         CUmemLocation* locations, size_t* first,
                                         size_t n_locations, unsigned long long flags,
                                         CUstream stream) {
  std::vector<Range> ranges;
  RETURN_IF_FAILED(make_batch(pointers, sizes, n, false, flags, stream, &ranges));
  RETURN_IF_FAILED(place(locations, first, n_locations, &ranges));
  return enqueue(std::move(ranges), stream);
}
SOFTWARE_GPU_API cuMemDiscardBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t n,
                                        unsigned long long flags, CUstream stream) {
  std::vector<Range> ranges;
  RETURN_IF_FAILED(make_batch(pointers, sizes, n, true, flags, stream, &ranges));
  return enqueue(std::move(ranges), stream);
}
SOFTWARE_GPU_API cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t n,
                                                   CUmemLocation* locations, size_t* first,
                                                   size_t n_locations, unsigned long long flags,
                                                   CUstream stream) {
  std::vector<Range> ranges;
  RETURN_IF_FAILED(make_batch(pointers, sizes, n, true, flags, stream, &ranges));
  RETURN_IF_FAILED(place(locations, first, n_locations, &ranges));
  return enqueue(std::move(ranges), stream);
}

SOFTWARE_GPU_API cuMemRangeGetAttribute(void* data, size_t n_bytes, CUmem_range_attribute attribute,
                                        CUdeviceptr pointer, size_t range_bytes) {
  return cuMemRangeGetAttributes(&data, &n_bytes, &attribute, 1, pointer, range_bytes);
}
SOFTWARE_GPU_API cuMemRangeGetAttributes(void** data, size_t* n_bytes,
                                         CUmem_range_attribute* attributes, size_t n,
                                         CUdeviceptr pointer, size_t range_bytes) {
  RETURN_IF_FAILED(enter_without_context());
  if (!data || !n_bytes || !attributes || n == 0) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(check_range(pointer, range_bytes));
  const Advice advice = Driver::instance().advice.common(pointer, range_bytes);
  for (size_t i = 0; i < n; ++i) {
    if (!data[i]) return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF_FAILED(range_attribute(data[i], n_bytes[i], attributes[i], advice));
  }
  return CUDA_SUCCESS;
}

// With concurrent access there is nothing that an attachment would permit or forbid.
SOFTWARE_GPU_API cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t n_bytes,
                                        unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  const auto allocation = Driver::instance().find(pointer);
  if (!allocation || allocation->kind != MemoryKind::MANAGED || allocation->base != pointer ||
      (n_bytes != 0 && n_bytes != allocation->size_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags == CU_MEM_ATTACH_SINGLE)
    return stream->is_legacy ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  return flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}
