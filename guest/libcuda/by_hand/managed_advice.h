// SPDX-License-Identifier: Apache-2.0
// What a program has said about ranges of managed memory: kept for whole pages, and told to who
// asks.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "cuda_api.h"
#include "kvgpu/layout.h"

namespace kvgpu::guest {

struct Advice {
  bool read_mostly = false;
  uint32_t accessed_by = 0;  // a bit for each device
  bool accessed_by_host = false;
  CUmemLocation preferred{CU_MEM_LOCATION_TYPE_INVALID, 0};
  CUmemLocation prefetched{CU_MEM_LOCATION_TYPE_INVALID, 0};
};

class AdviceMap {
 public:
  static AdviceMap& get();

  template <typename Change>
  void change(uint64_t address, uint64_t bytes, Change change) {
    const std::lock_guard lock(mutex_);
    const auto first = split(address / PAGE_BYTES * PAGE_BYTES);
    const auto end = split((address + bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    for (auto at = first; at != end; ++at) change(at->second);
  }
  // What holds for all of the range; for the rest it is as if nothing had been said.
  Advice common(uint64_t address, uint64_t bytes) const;

 private:
  using Pieces = std::map<uint64_t, Advice>;  // each up to the next one
  Pieces::iterator split(uint64_t address);

  mutable std::mutex mutex_;
  Pieces pieces_{{0, {}}};
};

}  // namespace kvgpu::guest
