// SPDX-License-Identifier: Apache-2.0
// Whether several guest threads launch more than one thread gets done by itself (lanes.h).
#pragma once

#include <bit>
#include <cstdint>

namespace kvgpu::worker {

class LanePressure {
 public:
  // A launch that another thread than the reader might execute. Returns whether one shall.
  bool add(uint32_t guest_thread) {
    is_relieved_ = false;
    threads_ |= uint64_t{1} << guest_thread % 64;
    if (++n_launches_ == PERIOD) end_period();
    return is_high_;
  }
  // A record between them that only the reader executes, once all lanes are through.
  void interrupt() { ++n_interrupts_; }
  // All that the guest has given has been executed, and nothing is held. Until the next launch
  // that is the same moment.
  void relieve() {
    if (is_relieved_) return;
    is_relieved_ = true;
    if (!is_high_ || ++n_reliefs_ == MOST_RELIEFS) end();
  }
  void end() { *this = {}; }

 private:
  static constexpr uint32_t PERIOD = 64;          // launches in a row
  static constexpr uint32_t MOST_RELIEFS = 16;    // of a period
  static constexpr uint32_t MOST_INTERRUPTS = 8;  // of a period: lanes have work for a while
  // A thread that finds room in the ring may fill all of it by itself while the others nap.
  static constexpr uint32_t PERIODS_OF_ONE = 64;

  void end_period() {
    if (n_interrupts_ > MOST_INTERRUPTS) {
      is_high_ = false;
    } else if (std::popcount(threads_) > 1) {
      is_high_ = true;
      n_of_one_ = 0;
    } else if (is_high_ && ++n_of_one_ == PERIODS_OF_ONE) {
      is_high_ = false;
    }
    n_launches_ = n_reliefs_ = n_interrupts_ = 0;
    threads_ = 0;
  }

  bool is_high_ = false, is_relieved_ = true;
  uint32_t n_of_one_ = 0;  // periods in a row
  // Of this period:
  uint32_t n_launches_ = 0, n_reliefs_ = 0, n_interrupts_ = 0;
  uint64_t threads_ = 0;  // a bit each, modulo 64
};

}  // namespace kvgpu::worker
