// SPDX-License-Identifier: Apache-2.0
// Pools that streams have given memory back to. Natively a pool keeps no more of it than its
// release threshold once the program has waited for a stream, an event or a context. The worker's
// driver never sees such a wait (the guest looks at a number), so the pools are trimmed then.
#pragma once

#include <atomic>

#include "objects.h"

namespace kvgpu::guest {

class FreedPools {
 public:
  // `pool` as the memory map names it.
  static void add(const Stream& stream, wire::Handle pool);
  // The program has waited; what it still waits for is said by the result.
  static CUresult after_wait() {
    return is_any_.load(std::memory_order_relaxed) ? trim() : CUDA_SUCCESS;
  }

 private:
  static CUresult trim();
  static inline std::atomic<bool> is_any_{false};
};

}  // namespace kvgpu::guest
