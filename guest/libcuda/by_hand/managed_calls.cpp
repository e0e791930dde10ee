// SPDX-License-Identifier: Apache-2.0
// Allocations of managed memory, and which streams may touch them.
#include "address_space.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "log.h"
#include "memory_limit.h"
#include "memory_map.h"

namespace kvgpu::guest {

namespace {

// Device memory that begins with a page, or of which a page inside does. All zeroes.
CUresult allocate_pages(const Call& call, uint64_t bytes, uint64_t* allocated, uint64_t* begin) {
  for (const uint64_t more : {uint64_t{0}, PAGE_BYTES}) {
    wire::MemAllocated out;
    const wire::MemAlloc body{call.context(), bytes + more};
    if (const CUresult bad = call.sync(wire::Op::cuMemAlloc_v2, body, &out)) return bad;
    *allocated = out.dptr;
    *begin = (out.dptr + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (*begin == out.dptr || more != 0) break;
    const wire::MemFree free{call.context(), out.dptr};
    if (const CUresult bad = call.sync(wire::Op::cuMemFree_v2, free)) return bad;
  }
  Stream& mover = *ManagedMemory::mover_of(call.context_object());
  const Enqueue enqueue(mover);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  const wire::Memset body{0, 0, *begin, bytes, 0, 0};
  if (const CUresult bad = enqueue.submit(wire::Op::cuMemsetD8Async, body)) return bad;
  return synchronize_stream(mover);
}

// Nothing of it belongs to the program yet.
CUresult adopt(const Call& call, uint64_t allocated, uint64_t begin, uint64_t bytes,
               unsigned flags) {
  if (!is_reserved_for_devices(begin, bytes)) {
    log(Level::WARNING,
        "the device address 0x%llx is not free in this process: the allocation is refused",
        static_cast<unsigned long long>(begin));
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Context& context = call.context_object();
  if (!ManagedMemory::get().add(context, begin, bytes, allocated, flags)) {
    log(Level::WARNING, "this process has no memory for the pages of managed memory");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory_map().add({begin, bytes, MemoryKind::MANAGED, &context});
  return CUDA_SUCCESS;
}

}  // namespace

CUresult mem_alloc_managed(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (dptr == nullptr || bytesize == 0 ||
      (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytesize > UINT64_MAX - 2 * PAGE_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
  const Allowance allowance(call, bytesize);
  if (allowance.status() != CUDA_SUCCESS) return allowance.status();
  if (const CUresult bad = ManagedMemory::prepare(call.context_object())) return bad;
  const uint64_t whole_bytes = (bytesize + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  uint64_t allocated = 0, begin = 0;
  CUresult result = allocate_pages(call, whole_bytes, &allocated, &begin);
  if (result == CUDA_SUCCESS) result = adopt(call, allocated, begin, bytesize, flags);
  if (result != CUDA_SUCCESS) {
    if (allocated != 0) {
      (void)call.sync(wire::Op::cuMemFree_v2, wire::MemFree{call.context(), allocated});
    }
    return result;
  }
  *dptr = begin;
  return CUDA_SUCCESS;
}

CUresult stream_attach_mem_async(CUstream hStream, CUdeviceptr dptr, size_t length,
                                 unsigned int flags) {
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
      flags != CU_MEM_ATTACH_SINGLE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (enqueue.capture() != nullptr) {
    return break_capture(enqueue.stream(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  if (const CUresult bad = unsafe_call_allowed()) return bad;
  const auto range = memory_map().find(dptr);
  if (!range || range->kind != MemoryKind::MANAGED || range->begin != dptr ||
      (length != 0 && length != range->bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == CU_MEM_ATTACH_SINGLE && enqueue.stream().is_legacy()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A variable shares its pages with others: it stays everybody's.
  if (range->module == 0) ManagedMemory::get().attach(dptr, flags, enqueue.stream());
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
