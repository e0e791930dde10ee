// SPDX-License-Identifier: Apache-2.0
// A mutex of one word, a fifth of pthread's instructions: for what every record, or every copy,
// takes for a moment.
#pragma once

#include <algorithm>
#include <atomic>

#include "kvgpu/barrier.h"

namespace kvgpu::guest {

class ShortLock {
 public:
  void lock() {
    if (!try_lock()) [[unlikely]]
      wait_and_lock();
  }
  bool try_lock() {
    State found = FREE;
    return state_.compare_exchange_strong(found, HELD, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  // A locked instruction: nothing that comes after it is read before what was written under the
  // lock is there for all. Session::kick_if_asleep() needs that.
  void unlock() {
    if (state_.exchange(FREE, std::memory_order_seq_cst) == AWAITED) [[unlikely]]
      state_.notify_one();
  }

 private:
  enum State : int { FREE, HELD, AWAITED };  // AWAITED: held, and perhaps somebody sleeps

  [[gnu::noinline]] void wait_and_lock() {
    // A record is written sooner than a sleeper wakes. Who only reads leaves the line to the
    // holder, and the more there are the less often they look.
    for (int i = 0; i < 60; ++i) {
      for (int n = 0; n < std::min(i, 8); ++n) cpu_relax();
      if (state_.load(std::memory_order_relaxed) == FREE && try_lock()) return;
    }
    while (state_.exchange(AWAITED, std::memory_order_acquire) != FREE) {
      state_.wait(AWAITED, std::memory_order_relaxed);
    }
  }

  // Release by unlock(), acquire by who takes it; unlock()'s seq_cst pairs with the fence in the
  // worker's sleep_until_kicked().
  std::atomic<State> state_{FREE};
};

}  // namespace kvgpu::guest
