// SPDX-License-Identifier: Apache-2.0
// Device memory.
#include "address_space.h"
#include "call.h"
#include "generated/api.gen.h"
#include "log.h"
#include "managed_advice.h"
#include "managed_memory.h"
#include "memory_limit.h"
#include "memory_map.h"

namespace kvgpu::guest {

namespace {

CUresult adopt(const Call& call, uint64_t dptr, uint64_t bytes) {
  if (!keep_for_devices(dptr, bytes)) {
    log(Level::WARNING,
        "the device address 0x%llx is not free in this process: the allocation is refused",
        static_cast<unsigned long long>(dptr));
    (void)call.sync(wire::Op::cuMemFree_v2, wire::MemFree{call.context(), dptr});
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  memory_map().add({dptr, bytes, MemoryKind::DEVICE, &call.context_object()});
  return CUDA_SUCCESS;
}

}  // namespace

CUresult mem_alloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (dptr == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
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
  // As on driver 580 these, unlike sizes that are too large, come before what a capture forbids.
  const bool is_element = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
  const bool is_bad = !is_element || WidthInBytes == 0 || Height == 0;
  const Call call(is_bad ? CaptureRule::ALLOWED : CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (is_bad) return CUDA_ERROR_INVALID_VALUE;
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

// Not of a variable, nor in the middle.
static CUresult free_managed(const Call& call, CUdeviceptr dptr) {
  const uint64_t allocated = ManagedMemory::get().remove(dptr);
  if (allocated == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto range = memory_map().remove(dptr, MemoryKind::MANAGED);
  AdviceMap::get().change(dptr, range->bytes, [](Advice& advice) { advice = {}; });
  return call.sync(wire::Op::cuMemFree_v2, wire::MemFree{call.context(), allocated});
}

CUresult mem_free_v2(CUdeviceptr dptr) {
  if (dptr == 0) return CUDA_SUCCESS;
  const auto known = memory_map().find(dptr);
  const Call call(CaptureRule::FORBIDDEN, known ? known->context : nullptr);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (known && known->kind == MemoryKind::MANAGED) return free_managed(call, dptr);
  const bool is_of_graph = known && known->begin == dptr && known->kind == MemoryKind::GRAPH;
  if (!is_of_graph && !memory_map().remove(dptr, MemoryKind::DEVICE) &&
      !memory_map().remove(dptr, MemoryKind::POOL)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
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

}  // namespace kvgpu::guest
