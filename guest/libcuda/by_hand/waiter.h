// SPDX-License-Identifier: Apache-2.0
// How a guest thread waits: spin, yield, sleep. With one processor, or more waiting threads than
// processors, spinning only takes the time of whoever is waited for.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "kvgpu/barrier.h"

namespace kvgpu::guest {

class SpinThenSleep {
 public:
  // Room in a full ring: the worker has thousands of records to execute and needs the processors,
  // the other half of one that spins or yields, too. In company all who wait for that nap at once.
  enum class For { ANSWER, ROOM };

  explicit SpinThenSleep(For what = For::ANSWER) : naps_(what == For::ROOM) {
    n_waiting().fetch_add(1, std::memory_order_relaxed);
  }
  ~SpinThenSleep() { n_waiting().fetch_sub(1, std::memory_order_relaxed); }
  SpinThenSleep(const SpinThenSleep&) = delete;
  SpinThenSleep& operator=(const SpinThenSleep&) = delete;

  bool in_company() const { return n_waiting().load(std::memory_order_relaxed) > 1; }
  bool was_long() const { return begun_ != Clock::time_point{}; }  // more than a spin

  // One step. Returns true about once a millisecond: time to look whether the other side is still
  // there.
  bool step() {
    const bool at_once = naps_ && in_company();
    if (!at_once && ++n_ < SPINS && n_waiting().load(std::memory_order_relaxed) < n_processors()) {
      cpu_relax();
      return false;
    }
    const Clock::time_point now = Clock::now();
    if (begun_ == Clock::time_point{}) begun_ = looked_ = now;
    const auto waited = now - begun_;
    if (!naps_ && waited < YIELDING) {
      sched_yield();
    } else {
      // What is seen late is seen late by a small part of the wait; after half a second 2 ms, which
      // costs 1 to 2 % of a processor.
      const auto shortest = naps_ ? NAP : SHORTEST;
      const auto pause = std::clamp<Clock::duration>(waited / 256, shortest, LONGEST);
      std::this_thread::sleep_for(pause);
    }
    if (now - looked_ < std::chrono::milliseconds(1)) return false;
    looked_ = now;
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr long SPINS = 2'000;  // about 50 µs
  // The driver itself spins as long as it takes; this gives way to who has something to do.
  static constexpr std::chrono::milliseconds YIELDING{10};
  static constexpr std::chrono::microseconds SHORTEST{20}, LONGEST{2'000};
  static constexpr std::chrono::microseconds NAP{200};  // a full ring lasts for longer

  static std::atomic<long>& n_waiting() {
    static std::atomic<long> n{0};
    return n;
  }
  static long n_processors() {
    static const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n;
  }

  const bool naps_;
  long n_ = 0;
  Clock::time_point begun_, looked_;  // since it is more than a spin
};

}  // namespace kvgpu::guest
