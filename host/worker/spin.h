// SPDX-License-Identifier: Apache-2.0
// Spin briefly, then give way. With few cores spinning only takes the time of whoever is waited
// for.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "kvgpu/barrier.h"

namespace kvgpu::worker {

class Spin {
 public:
  using Clock = std::chrono::steady_clock;
  // Spinning alone; who spins longer gives way to other threads meanwhile.
  static Clock::duration alone() { return few_cores() ? FEW_CORES_LIMIT : LIMIT; }
  static bool few_cores() {
    static const bool few = std::thread::hardware_concurrency() <= 2;
    return few;
  }

  explicit Spin(Clock::duration limit = alone()) : limit_(limit) {}

  // One step of a bounded spin. False: long enough, sleep now.
  bool once() {
    if (is_over_) return false;
    ++n_;
    if (n_ > EVERY && (gives_way_ || few_cores())) {
      std::this_thread::yield();
    } else {
      cpu_relax();  // one alone: what is waited for is seen at once
      if (n_ % EVERY != 0) return true;
    }
    const Clock::time_point now = Clock::now();
    if (n_ == EVERY) begun_ = now;
    gives_way_ = now - begun_ >= alone();
    is_over_ = now - begun_ >= limit_;
    return !is_over_;
  }
  // One step of an unbounded wait.
  void wait() {
    if (!once()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  // So long after all. False: it is over nevertheless.
  bool go_on(Clock::duration limit) {
    limit_ = limit;
    is_over_ = Clock::now() - begun_ >= limit_;
    return !is_over_;
  }
  void reset() { reset(limit_); }
  void reset(Clock::duration limit) {
    limit_ = limit;
    n_ = 0;
    is_over_ = gives_way_ = false;
  }

 private:
  static constexpr std::chrono::microseconds LIMIT{200}, FEW_CORES_LIMIT{20};
  static constexpr int EVERY = 64;  // steps, between looks at the clock

  Clock::duration limit_;
  int n_ = 0;
  bool is_over_ = false, gives_way_ = false;
  Clock::time_point begun_;
};

// Who reads records as fast as another processor writes them looks at each line while it is being
// written: it moves and moves, and both take longer for a record than with a slower reader. So
// where many came within a short time, and there is none, it looks again only when there may be
// many. A real driver's launches take too long for that: no wait there.
class Gathering {
 public:
  void found(uint32_t n) { n_found_ += n; }
  // Nothing was found. False: nor has it waited.
  bool waits() {
    if (n_found_ < MANY) return false;
    const Spin::Clock::time_point now = Spin::Clock::now();
    const bool were_fast = now - begun_ < n_found_ * EACH;
    begun_ = were_fast ? now + LIMIT : now;
    n_found_ = 0;
    if (!were_fast) return false;
    while (Spin::Clock::now() < begun_) cpu_relax();
    return true;
  }

 private:
  static constexpr uint32_t MANY = 8;
  static constexpr std::chrono::nanoseconds EACH{300};
  static constexpr std::chrono::microseconds LIMIT{3};  // some 50 launches

  uint32_t n_found_ = 0;
  Spin::Clock::time_point begun_;
};

// How long to spin before sleeping, from which one wakes some 50 µs late: longer where what is
// waited for keeps coming soon after one has gone to sleep (a program that waits a millisecond for
// its GPU, again and again), else shorter. As hypervisors poll before they halt a processor.
class Patience {
 public:
  static constexpr std::chrono::microseconds LONGEST{1'500};

  explicit Patience(bool few_cores = Spin::few_cores())
      : longest_(few_cores ? Spin::alone() : LONGEST) {}
  Spin::Clock::duration limit() const { return limit_; }
  void slept(Spin::Clock::duration time) {
    const bool pays = limit_ + time <= longest_;
    limit_ = pays ? std::min(2 * limit_, longest_) : std::max(limit_ / 2, Spin::alone());
  }

 private:
  Spin::Clock::duration longest_, limit_ = Spin::alone();
};

}  // namespace kvgpu::worker
