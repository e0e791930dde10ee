// SPDX-License-Identifier: Apache-2.0
// Whether several guest threads launch more than one thread gets done by itself (lanes.h).
#pragma once

#include <cstdint>

namespace kvgpu::worker {

class LanePressure {
 public:
  // Nobody else has launched of late: not even what add() counts need be known.
  bool is_none(uint32_t guest_thread) const {
    return !is_high_ && n_turns_ == 0 && guest_thread == last_thread_;
  }
  // A launch that another thread than the reader might execute. Returns whether one shall.
  bool add(uint32_t guest_thread) {
    is_relieved_ = false;
    n_turns_ += guest_thread != last_thread_;
    last_thread_ = guest_thread;
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
  static constexpr uint32_t PERIOD = 1024;  // launches in a row
  // Of a period. A program's second thread (PyTorch's backward pass) has its turn and gives it
  // back. Of several at once each has a share of the ring (Session::SHARE_BYTES), 130 to 260
  // launches.
  static constexpr uint32_t FEWEST_TURNS = 3;
  static constexpr uint32_t MOST_RELIEFS = 256;
  static constexpr uint32_t MOST_INTERRUPTS = 128;  // lanes have work for a while
  static constexpr uint32_t PERIODS_OF_ONE = 4;     // a thread may fill the whole ring

  void end_period() {
    if (n_interrupts_ > MOST_INTERRUPTS) {
      is_high_ = false;
    } else if (n_turns_ >= FEWEST_TURNS) {
      is_high_ = true;
      n_of_one_ = 0;
    } else if (is_high_ && ++n_of_one_ == PERIODS_OF_ONE) {
      is_high_ = false;
    }
    n_launches_ = n_turns_ = n_reliefs_ = n_interrupts_ = 0;
  }

  bool is_high_ = false, is_relieved_ = true;
  uint32_t n_of_one_ = 0;  // periods in a row
  uint32_t last_thread_ = 0;
  uint32_t n_launches_ = 0, n_turns_ = 0, n_reliefs_ = 0, n_interrupts_ = 0;  // of this period
};

}  // namespace kvgpu::worker
