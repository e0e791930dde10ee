// SPDX-License-Identifier: Apache-2.0
// Pinned host memory, carved from extents of the region that the worker has registered with the
// GPU: one address here, in the worker and on the GPU.
#pragma once

#include <map>
#include <mutex>
#include <set>

#include "cuda_api.h"

namespace kvgpu::guest {

class PinnedHeap {
 public:
  static constexpr uint64_t GRAIN_BYTES = 512;

  static PinnedHeap& get();

  // `align_bytes`: a power of two.
  CUresult allocate(uint64_t bytes, uint64_t* address, uint64_t align_bytes = GRAIN_BYTES);
  void free(uint64_t address);

 private:
  static constexpr uint64_t PREFERRED_EXTENT_BYTES = 32ull << 20;

  bool place(uint64_t bytes, uint64_t align_bytes, uint64_t* address);
  CUresult grow(uint64_t bytes);
  void insert_free(uint64_t begin, uint64_t bytes);

  std::mutex mutex_;
  // Where extents begin: each is registered with the GPU by itself, nothing lies in two of them.
  std::set<uint64_t> extents_;
  std::map<uint64_t, uint64_t> free_;  // address -> bytes, neighbours of one extent merged
  std::map<uint64_t, uint64_t> used_;
};

}  // namespace kvgpu::guest
