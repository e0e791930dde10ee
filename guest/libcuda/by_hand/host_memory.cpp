// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory: allocated in the pinned heap, or registered where it is.
#include "host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "call.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "log.h"
#include "pinned_heap.h"
#include "refuse.h"
#include "registrations.h"

namespace kvgpu::guest {

namespace {

// KVGPU_PINNED=copy: page-locked memory is ordinary memory that is copied through the slab, for
// programs that hand it to O_DIRECT, io_uring or RDMA.
bool pinned_by_copy() {
  static const bool by_copy = [] {
    const char* mode = secure_getenv("KVGPU_PINNED");
    if (mode == nullptr || std::strcmp(mode, "map") == 0) return false;
    if (std::strcmp(mode, "copy") == 0) return true;
    log(Level::WARNING, "KVGPU_PINNED=%s is neither \"map\" nor \"copy\": using \"map\"", mode);
    return false;
  }();
  return by_copy;
}

CUresult refuse_mapped() {
  return static_cast<CUresult>(
      refuse_part("mapped access to host memory that is not in the pinned heap (KVGPU_PINNED=copy, "
                  "or registered shared, file or partial pages)"));
}

// Waits, then gives back; keeps the memory for ever where the GPU may still be using it.
CUresult finish_and_give_back(const MemoryRange& range) {
  bool done;
  const CUresult result = finish_all_work(&done);
  if (done) give_back(range);
  return result;
}

CUresult allocate(size_t bytes, MemoryRange* range) {
  if (!pinned_by_copy()) {
    if (const CUresult bad = PinnedHeap::get().allocate(bytes, &range->begin)) return bad;
    range->reached_begin = range->gpu_begin = range->begin;
    range->reached_bytes = bytes;
    return CUDA_SUCCESS;
  }
  constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS;
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
  if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  range->begin = reinterpret_cast<uint64_t>(pages);
  return CUDA_SUCCESS;
}

// The whole pages of the range go into the heap; what is left of it is staged. Holding the
// registrations' lock.
CUresult place_registered(MemoryRange* range) {
  const bool mapped = (range->flags & CU_MEMHOSTREGISTER_DEVICEMAP) != 0;
  const uint64_t begin = (range->begin + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  const uint64_t end = (range->begin + range->bytes) / PAGE_BYTES * PAGE_BYTES;
  const bool whole = begin == range->begin && end == range->begin + range->bytes;
  const Pages pages = pages_of(range->begin, range->bytes);
  if (pages == Pages::NOT_THERE) return CUDA_ERROR_INVALID_VALUE;
  const bool movable = pages == Pages::PRIVATE && !pinned_by_copy() && begin < end;
  if (mapped && (!movable || !whole)) return refuse_mapped();
  if (!movable) return CUDA_SUCCESS;
  const CUresult result = move_in(begin, end - begin, &range->gpu_begin);
  if (result != CUDA_SUCCESS) return result;
  range->reached_begin = begin;
  range->reached_bytes = end - begin;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult finish_all_work(bool* done) {
  CUresult first = CUDA_SUCCESS;
  // An error ends the wait for what was lost with it, not the work that went on: once more.
  for (int attempt = 0; attempt < 2; ++attempt) {
    CUresult result = CUDA_SUCCESS;
    for (const wire::Handle handle : tables().contexts.handles()) {
      Context* const context = tables().contexts.find(handle);
      if (context != nullptr && context->active) result = finish_work(*context);
      if (result != CUDA_SUCCESS) break;
    }
    *done = result == CUDA_SUCCESS;
    if (*done) return first;
    if (first == CUDA_SUCCESS) first = result;
  }
  return first;
}

void give_back(const MemoryRange& range) {
  if (range.kind == MemoryKind::PINNED) {
    if (range.reached_bytes != 0) {
      PinnedHeap::get().free(range.begin);
    } else {
      (void)munmap(reinterpret_cast<void*>(range.begin), range.bytes);
    }
  } else if (range.kind == MemoryKind::REGISTERED && range.reached_bytes != 0) {
    const std::lock_guard lock(registrations_mutex());
    move_back(range.reached_begin, range.reached_bytes, range.gpu_begin);
  }
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
  if (pinned_by_copy() && (Flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0) return refuse_mapped();
  MemoryRange range{0, bytesize, MemoryKind::PINNED, &call.context_object()};
  // With unified addressing all of it is mapped, and on driver 580 only that is said.
  range.flags = Flags;
  if (!pinned_by_copy()) range.flags |= CU_MEMHOSTALLOC_DEVICEMAP;
  if (const CUresult bad = allocate(bytesize, &range)) return bad;
  memory_map().add(range);
  *pp = reinterpret_cast<void*>(range.begin);
  return CUDA_SUCCESS;
}

CUresult mem_alloc_host_v2(void** pp, size_t bytesize) { return mem_host_alloc(pp, bytesize, 0); }
CUresult mem_free_host(void* p) {
  if (p == nullptr) return CUDA_SUCCESS;
  const auto address = reinterpret_cast<uint64_t>(p);
  const auto known = memory_map().find(address);
  const Call call(CaptureRule::FORBIDDEN, known ? known->context : nullptr);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto range = memory_map().remove(address, MemoryKind::PINNED);
  return range ? finish_and_give_back(*range) : CUDA_ERROR_INVALID_VALUE;
}

CUresult mem_host_register_v2(void* p, size_t bytesize, unsigned int Flags) {
  constexpr unsigned KNOWN = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                             CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  const auto address = reinterpret_cast<uint64_t>(p);
  if (p == nullptr || bytesize == 0 || (Flags & ~KNOWN) != 0 || address + bytesize < address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if ((Flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) {
    return static_cast<CUresult>(refuse_part("cuMemHostRegister of a device's memory"));
  }
  MemoryRange range{address, bytesize, MemoryKind::REGISTERED, &call.context_object(), Flags};
  const std::lock_guard lock(registrations_mutex());
  const auto known = memory_map().find(address);
  const bool is_mapping = known && known->is_mapping();
  if (is_mapping || (known && known->kind == MemoryKind::MANAGED)) return CUDA_ERROR_INVALID_VALUE;
  if (memory_map().overlaps(address, bytesize)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (const CUresult bad = place_registered(&range)) return bad;
  memory_map().add(range);
  if (range.reached_bytes != 0) {
    MemoryRange alias{range.gpu_begin, range.reached_bytes, MemoryKind::ALIAS, range.context};
    alias.reached_begin = range.reached_begin;
    memory_map().add(alias);
  }
  return CUDA_SUCCESS;
}

CUresult mem_host_register(void* p, size_t bytesize, unsigned int Flags) {
  return mem_host_register_v2(p, bytesize, Flags);
}

CUresult mem_host_unregister(void* p) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto address = reinterpret_cast<uint64_t>(p);
  const auto known = memory_map().find(address);
  const Call call(CaptureRule::FORBIDDEN, known ? known->context : nullptr);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto range = memory_map().remove(address, MemoryKind::REGISTERED);
  if (known && known->is_mapping()) return CUDA_ERROR_INVALID_VALUE;
  if (!range) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  (void)memory_map().remove(range->gpu_begin, MemoryKind::ALIAS);
  return finish_and_give_back(*range);
}

CUresult mem_host_get_device_pointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pdptr == nullptr || p == nullptr || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto address = reinterpret_cast<uint64_t>(p);
  const auto range = memory_map().find(address);
  if (!range || !range->is_host()) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t gpu_address = range->gpu_address(address, 1);
  if (gpu_address == 0) return refuse_mapped();
  *pdptr = gpu_address;
  return CUDA_SUCCESS;
}

CUresult mem_host_get_flags(unsigned int* pFlags, void* p) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pFlags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto range = memory_map().find(reinterpret_cast<uint64_t>(p));
  if (!range || range->kind != MemoryKind::PINNED) return CUDA_ERROR_INVALID_VALUE;
  *pFlags = range->flags;
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
