// SPDX-License-Identifier: Apache-2.0
#include "pinned_heap.h"

#include <sys/mman.h>

#include <algorithm>

#include "address_space.h"
#include "call.h"
#include "log.h"

namespace kvgpu::guest {

PinnedHeap& PinnedHeap::get() {
  static auto& heap = *new PinnedHeap;
  return heap;
}

CUresult PinnedHeap::allocate(uint64_t bytes, uint64_t* address, uint64_t align_bytes) {
  if (bytes > SESSION_WINDOW_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
  bytes = std::max((bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES, GRAIN_BYTES);
  const std::lock_guard lock(mutex_);
  if (!place(bytes, align_bytes, address)) {
    if (const CUresult bad = grow(bytes)) return bad;
    if (!place(bytes, align_bytes, address)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return Session::get().share(*address, bytes);
}

bool PinnedHeap::place(uint64_t bytes, uint64_t align_bytes, uint64_t* address) {
  const auto aligned = [align_bytes](uint64_t at) { return (at + align_bytes - 1) & -align_bytes; };
  // Best fit: large pieces stay whole for large buffers.
  auto best = free_.end();
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    const uint64_t skipped = aligned(at->first) - at->first;
    const bool fits = at->second >= skipped && at->second - skipped >= bytes;
    if (fits && (best == free_.end() || at->second < best->second)) best = at;
  }
  if (best == free_.end()) return false;
  const auto [piece, available] = *best;
  free_.erase(best);
  const uint64_t begin = aligned(piece), end = piece + available;
  if (begin > piece) free_[piece] = begin - piece;
  if (end > begin + bytes) free_[begin + bytes] = end - begin - bytes;
  used_[begin] = bytes;
  *address = begin;
  return true;
}

CUresult PinnedHeap::grow(uint64_t bytes) {
  Session& session = Session::get();
  const uint64_t exact = (bytes + EXTENT_ALIGN_BYTES - 1) / EXTENT_ALIGN_BYTES * EXTENT_ALIGN_BYTES;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  wire::HeapGrown grown{};
  for (const uint64_t wanted : {std::max(exact, PREFERRED_EXTENT_BYTES), exact}) {
    ReplyBuffer out{&grown, sizeof grown};
    result = session.call(wire::Op::HEAP_GROW, 0, &out, part(wire::HeapGrow{wanted}));
    if (result != CUDA_ERROR_OUT_OF_MEMORY) break;
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    log(Level::WARNING,
        "no pinned memory left for %llu bytes: give the VM more with `kvgpu vm xml --pinned SIZE`",
        static_cast<unsigned long long>(bytes));
  }
  if (result != CUDA_SUCCESS) return result;
  if (!map_region(session.region_fd(), grown.region_off, grown.bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  // A forked child has no CUDA: it must not write into what the GPU and its parent share.
  (void)madvise(reinterpret_cast<void*>(reserve_address_space() + grown.region_off), grown.bytes,
                MADV_DONTFORK);
  extents_.insert(reserve_address_space() + grown.region_off);
  insert_free(reserve_address_space() + grown.region_off, grown.bytes);
  return CUDA_SUCCESS;
}

void PinnedHeap::free(uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.extract(address);
  if (found.empty()) return;
  Session::get().unshare(address, found.mapped());
  insert_free(address, found.mapped());
}

void PinnedHeap::insert_free(uint64_t begin, uint64_t bytes) {
  auto after = free_.lower_bound(begin);
  if (after != free_.end() && begin + bytes == after->first && !extents_.contains(after->first)) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin() && !extents_.contains(begin)) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_[begin] = bytes;
}

}  // namespace kvgpu::guest
