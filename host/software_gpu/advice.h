// SPDX-License-Identifier: Apache-2.0
// What a program has said about ranges of managed memory. It is kept, and asked for; as all memory
// here is the host's, nothing has to be done about it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace software_gpu {

struct Advice {
  bool read_mostly = false;
  CUmemLocation preferred = {CU_MEM_LOCATION_TYPE_INVALID, 0};
  CUmemLocation prefetched = {CU_MEM_LOCATION_TYPE_INVALID, 0};
  uint32_t accessed_by = 0;  // a bit for each device
  bool accessed_by_host = false;
};

/// By address. Thread-safe.
class AdviceMap {
 public:
  void change(uint64_t address, uint64_t n_bytes, const std::function<void(Advice&)>& how);
  /// What holds for all pages of the range.
  Advice common(uint64_t address, uint64_t n_bytes) const;
  void forget(uint64_t address, uint64_t n_bytes) {
    change(address, n_bytes, [](Advice& advice) { advice = {}; });
  }

 private:
  mutable std::mutex mutex_;
  // Each holds from its address up to the next one's.
  std::map<uint64_t, Advice> from_ = {{0, {}}};
};

}  // namespace software_gpu
