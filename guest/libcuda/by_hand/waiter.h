// SPDX-License-Identifier: Apache-2.0
// How a guest thread waits: spin, yield, sleep. With one processor, or more waiting threads than
// processors, spinning only takes the time of whoever is waited for.
#pragma once

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kvgpu/barrier.h"

namespace kvgpu::guest {

class SpinThenSleep {
 public:
  SpinThenSleep() { n_waiting().fetch_add(1, std::memory_order_relaxed); }
  ~SpinThenSleep() { n_waiting().fetch_sub(1, std::memory_order_relaxed); }
  SpinThenSleep(const SpinThenSleep&) = delete;
  SpinThenSleep& operator=(const SpinThenSleep&) = delete;

  // One step. Returns true about once a millisecond: time to look whether the other side is still
  // there.
  bool step() {
    ++n_;
    if (n_ < SPINS && n_waiting().load(std::memory_order_relaxed) < n_processors()) {
      cpu_relax();
      return false;
    }
    if (n_ < SPINS + YIELDS) {
      sched_yield();
      return n_ % 64 == 0;
    }
    // Longer the longer it has taken: after a second 2 ms, which costs 1 to 2 % of a processor.
    const timespec pause{0, std::min<long>(20'000L + (n_ - SPINS - YIELDS) * 2'000L, 2'000'000L)};
    nanosleep(&pause, nullptr);
    return n_ % 4 == 0;
  }

 private:
  static constexpr long SPINS = 2'000;  // about 50 µs
  static constexpr long YIELDS = 256;

  static std::atomic<long>& n_waiting() {
    static std::atomic<long> n{0};
    return n;
  }
  static long n_processors() {
    static const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n;
  }

  long n_ = 0;
};

}  // namespace kvgpu::guest
