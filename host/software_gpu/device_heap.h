// SPDX-License-Identifier: Apache-2.0
// What kernels get from malloc: pieces of one allocation of the device. It outlives launches and
// goes with its context.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "memory.h"

namespace software_gpu {

class DeviceHeap {
 public:
  /// Of memory of kind MODULE, which goes with it.
  DeviceHeap(Memory& memory, uint64_t base, uint64_t n_bytes)
      : memory_(memory), base_(base), free_{{base, n_bytes}} {}
  ~DeviceHeap();
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;
  /// 0: there is no such piece left.
  uint64_t allocate(uint64_t n_bytes);
  /// False: no piece begins there.
  bool free(uint64_t address);

 private:
  Memory& memory_;
  const uint64_t base_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_, used_;  // pieces by their address, with their size
};

}  // namespace software_gpu
