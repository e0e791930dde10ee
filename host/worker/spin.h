// SPDX-License-Identifier: Apache-2.0
// Spin briefly, then give way. With few cores spinning only takes the time of whoever is waited
// for.
#pragma once

#include <chrono>
#include <thread>

#include "kvgpu/barrier.h"

namespace kvgpu::worker {

class Spin {
 public:
  // One step of a bounded spin. False: long enough, sleep now.
  bool once() {
    if (is_over_) return false;
    ++n_;
    if (n_ > EVERY && few_cores()) {
      std::this_thread::yield();
    } else {
      cpu_relax();  // one alone: what is waited for is seen at once
      if (n_ % EVERY != 0) return true;
    }
    const Clock::time_point now = Clock::now();
    if (n_ == EVERY) begun_ = now;
    is_over_ = now - begun_ >= (few_cores() ? FEW_CORES_LIMIT : LIMIT);
    return !is_over_;
  }
  // One step of an unbounded wait.
  void wait() {
    if (!once()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  void reset() {
    n_ = 0;
    is_over_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds LIMIT{200}, FEW_CORES_LIMIT{20};
  static constexpr int EVERY = 64;  // steps, between looks at the clock
  static bool few_cores() {
    static const bool few = std::thread::hardware_concurrency() <= 2;
    return few;
  }

  int n_ = 0;
  bool is_over_ = false;
  Clock::time_point begun_;
};

}  // namespace kvgpu::worker
