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
    if (++n_ < 64) {
      cpu_relax();
      return true;
    }
    if (n_ == 64) start_ = Clock::now();
    if (few_cores()) {
      std::this_thread::yield();
    } else {
      for (int i = 0; i < 16; ++i) cpu_relax();
    }
    return Clock::now() - start_ < (few_cores() ? std::chrono::microseconds(20) : LIMIT);
  }
  // One step of an unbounded wait.
  void wait() {
    if (!once()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  void reset() { n_ = 0; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds LIMIT{200};
  static bool few_cores() {
    static const bool few = std::thread::hardware_concurrency() <= 2;
    return few;
  }

  int n_ = 0;
  Clock::time_point start_;
};

}  // namespace kvgpu::worker
