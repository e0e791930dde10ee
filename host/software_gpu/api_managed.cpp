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

CUresult check_range(CUdeviceptr address, size_t n_bytes) {
  const auto allocation = Driver::instance().find(address);
  return allocation && allocation->kind == MemoryKind::MANAGED && n_bytes != 0 &&
                 n_bytes <= allocation->size_bytes - (address - allocation->base)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

bool is_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUresult check_location(const CUmemLocation& location, CUresult no_device) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return Driver::instance().device(location.id) ? CUDA_SUCCESS : no_device;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
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
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return is_host(location) ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
}

int id_of(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ? location.id : device_of(location);
}

bool is_host_node(const CUmemLocation& location) {
  return is_host(location) && location.type != CU_MEM_LOCATION_TYPE_HOST;
}

/// As driver 580 looks at the location: not at all where only whether there is one matters.
CUresult check_advice(CUmem_advise advice, const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      if (is_host_node(location)) return CUDA_ERROR_INVALID_VALUE;
      return check_location(location, CUDA_ERROR_INVALID_VALUE);
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return check_location(location, CUDA_ERROR_INVALID_VALUE);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

void follow(CUmem_advise advice, const CUmemLocation& location, Advice* kept) {
  const bool is_set = advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      kept->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
      return;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      // As driver 580: of a node of the host's nothing is kept.
      if (!is_host_node(location)) kept->preferred = location;
      return;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      kept->preferred = Advice().preferred;
      return;
    default:
      break;
  }
  if (is_host(location)) {
    kept->accessed_by_host = is_set;
    return;
  }
  const uint32_t bit = 1u << location.id;
  kept->accessed_by = is_set ? kept->accessed_by | bit : kept->accessed_by & ~bit;
}

CUresult advise(CUdeviceptr address, size_t n_bytes, CUmem_advise advice, CUmemLocation location) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_range(address, n_bytes));
  RETURN_IF_FAILED(check_advice(advice, location));
  Driver::instance().advice.change(address, n_bytes,
                                   [&](Advice& kept) { follow(advice, location, &kept); });
  return CUDA_SUCCESS;
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
    if (range.to.type != CU_MEM_LOCATION_TYPE_INVALID)
      RETURN_IF_FAILED(check_location(range.to, CUDA_ERROR_INVALID_DEVICE));
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
    for (size_t k = first[i]; k < end; ++k) (*ranges)[k].to = locations[i];
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

CUresult answer_accessed_by(void* data, size_t n_bytes, const Advice& advice) {
  if (n_bytes == 0 || n_bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<int> ids;
  for (int id = 0; id < 32; ++id)
    if (advice.accessed_by >> id & 1) ids.push_back(id);
  if (advice.accessed_by_host) ids.push_back(CU_DEVICE_CPU);
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
      return answer_accessed_by(data, n_bytes, advice);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return answer(data, n_bytes, device_of(advice.prefetched));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return answer(data, n_bytes, &advice.preferred.type, sizeof(CUmemLocationType));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return answer(data, n_bytes, id_of(advice.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return answer(data, n_bytes, &advice.prefetched.type, sizeof(CUmemLocationType));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return answer(data, n_bytes, id_of(advice.prefetched));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

#undef cuMemAdvise
SOFTWARE_GPU_API cuMemAdvise(CUdeviceptr pointer, size_t n_bytes, CUmem_advise advice,
                             CUdevice device) {
  if (device != CU_DEVICE_CPU && !Driver::instance().device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  return advise(pointer, n_bytes, advice, location_of(device));
}
SOFTWARE_GPU_API cuMemAdvise_v2(CUdeviceptr pointer, size_t n_bytes, CUmem_advise advice,
                                CUmemLocation location) {
  return advise(pointer, n_bytes, advice, location);
}

#undef cuMemPrefetchAsync
SOFTWARE_GPU_API cuMemPrefetchAsync(CUdeviceptr pointer, size_t n_bytes, CUdevice device,
                                    CUstream stream) {
  return enqueue({{pointer, n_bytes, false, location_of(device)}}, stream);
}
SOFTWARE_GPU_API cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t n_bytes, CUmemLocation location,
                                       unsigned flags, CUstream stream) {
  if (flags != 0 || location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  return enqueue({{pointer, n_bytes, false, location}}, stream);
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
  Context* context;
  RETURN_IF_FAILED(enter(&context));
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
