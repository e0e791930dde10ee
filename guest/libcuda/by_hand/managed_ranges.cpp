// SPDX-License-Identifier: Apache-2.0
// Ranges of managed memory that are to be somewhere, or are no longer needed. Pages move at once,
// whatever the stream has still to do: work that was given before has them already.
#include "managed_ranges.h"

#include <vector>

#include "enqueue.h"
#include "generated/api.gen.h"
#include "managed_advice.h"
#include "memory_map.h"

namespace kvgpu::guest {

CUresult check_managed(CUdeviceptr address, size_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto range = memory_map().find(address, bytes);
  return range && range->kind == MemoryKind::MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_location(const CUmemLocation& location, CUresult no_device) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return Session::get().find_device(location.id) != nullptr ? CUDA_SUCCESS : no_device;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

bool is_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUmemLocation location_of(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

int device_of(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return is_host(location) ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
}

int id_of(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ? location.id : device_of(location);
}

namespace {

struct Placed {
  uint64_t address;
  uint64_t bytes;
  CUmemLocation to{CU_MEM_LOCATION_TYPE_INVALID, 0};  // where it is wanted, if anywhere
};

CUresult place(const Enqueue& enqueue, const std::vector<Placed>& ranges) {
  for (const auto& [address, bytes, to] : ranges) {
    if (const CUresult bad = check_managed(address, bytes)) return bad;
    if (to.type == CU_MEM_LOCATION_TYPE_INVALID) continue;
    if (const CUresult bad = check_location(to, CUDA_ERROR_INVALID_DEVICE)) return bad;
  }
  if (enqueue.capture() != nullptr) {
    return break_capture(enqueue.stream(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  ManagedMemory& memory = ManagedMemory::get();
  for (const auto& [address, bytes, to] : ranges) {
    if (to.type == CU_MEM_LOCATION_TYPE_INVALID) continue;
    if (!is_host(to)) {
      if (const CUresult bad = memory.give_range(address, bytes)) return bad;
    }
    memory.want_here(address, is_host(to));
    AdviceMap::get().change(address, bytes, [&](Advice& advice) { advice.prefetched = to; });
  }
  return CUDA_SUCCESS;
}

CUresult prefetch(const Placed& range, unsigned flags, CUstream stream) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (flags != 0 || range.to.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  return place(enqueue, {range});
}

// Where there are locations, each is for the ranges from its index up to the next one's.
CUresult place_batch(const CUdeviceptr* pointers, const size_t* sizes, size_t n,
                     const CUmemLocation* locations, const size_t* first, size_t n_locations,
                     unsigned long long flags, CUstream stream) {
  if (pointers == nullptr || sizes == nullptr || n == 0 || n > SIZE_MAX / sizeof *pointers ||
      flags != 0 || stream == nullptr || stream == CU_STREAM_LEGACY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Placed> ranges;
  for (size_t i = 0; i < n; ++i) ranges.push_back({pointers[i], sizes[i]});
  for (size_t i = 0; i < n_locations; ++i) {
    const size_t end = i + 1 < n_locations ? first[i + 1] : n;
    if (end <= first[i] || end > n || locations[i].type == CU_MEM_LOCATION_TYPE_INVALID) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t k = first[i]; k < end; ++k) ranges[k].to = locations[i];
  }
  const Enqueue enqueue(stream);
  return enqueue.status() == CUDA_SUCCESS ? place(enqueue, ranges) : enqueue.status();
}

bool are_locations(const CUmemLocation* locations, const size_t* first, size_t n) {
  return locations != nullptr && first != nullptr && n != 0 && first[0] == 0;
}

}  // namespace

CUresult mem_prefetch_async(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                            CUstream hStream) {
  return prefetch({devPtr, count, location_of(dstDevice)}, 0, hStream);
}
CUresult mem_prefetch_async_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                               unsigned int flags, CUstream hStream) {
  return prefetch({devPtr, count, location}, flags, hStream);
}

CUresult mem_prefetch_batch_async(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                  CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                  size_t numPrefetchLocs, unsigned long long flags,
                                  CUstream hStream) {
  if (!are_locations(prefetchLocs, prefetchLocIdxs, numPrefetchLocs)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return place_batch(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags,
                     hStream);
}

// CUDA 13.0 cuda.h: what was discarded reads as anything until it is written; it stays as it is.
CUresult mem_discard_batch_async(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                 unsigned long long flags, CUstream hStream) {
  return place_batch(dptrs, sizes, count, nullptr, nullptr, 0, flags, hStream);
}
CUresult mem_discard_and_prefetch_batch_async(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                              CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                              size_t numPrefetchLocs, unsigned long long flags,
                                              CUstream hStream) {
  return mem_prefetch_batch_async(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                  numPrefetchLocs, flags, hStream);
}

}  // namespace kvgpu::guest
