// SPDX-License-Identifier: Apache-2.0
// How much of a stream's work is in the driver. Behind a stream that waits the driver takes about
// 1,020 launches (one H200, driver 580) and then blocks its caller; an executor must not be that
// caller, since all streams of its device wait with it. So a stream is full at half of that, and
// its further work waits in the executor's Backlog.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "driver.h"

namespace kvgpu::worker {

// Whether the stream captures, or has captured what is no graph any more; so, too, if the driver
// does not say. Its context is current.
[[nodiscard]] bool captures(const DriverTable& driver, CUstream stream);

// Belongs to who executes the stream's records: the executor of its device or, while that leaves
// them to it, a lane (lanes.h). The stream's context is current in each call.
class StreamWindow {
 public:
  static constexpr uint64_t LIMIT = 512;
  // An event is three more calls of the driver: whether it captures, the record, the query.
  static constexpr uint64_t EVENT_EVERY = LIMIT / 2;
  // How long who waits for room looks away: to look costs those who launch, and a full stream has
  // work for much longer than this.
  static constexpr std::chrono::microseconds BETWEEN_LOOKS{20};

  // The driver has been given another call for this stream, or so many.
  void count(const DriverTable& driver, CUstream stream, uint64_t n = 1) {
    given_ += n;
    if (given_ - recorded_ >= EVENT_EVERY) (void)record(driver, stream);
  }
  [[nodiscard]] bool may_be_full() const { return given_ - done_ >= LIMIT; }  // no driver call
  [[nodiscard]] bool is_full(const DriverTable& driver, CUstream stream);
  // Behind all that the driver has been given for this stream; the caller destroys it. Null: all of
  // that is done, or there is no event to be had. Not while anything of the device captures.
  [[nodiscard]] CUevent event_behind(const DriverTable& driver, CUstream stream);
  // The stream is going.
  void close(const DriverTable& driver);

 private:
  struct Point {
    CUevent event;
    uint64_t given;  // calls that came before it
  };
  bool record(const DriverTable& driver, CUstream stream);

  uint64_t given_ = 0, recorded_ = 0, done_ = 0;
  std::deque<Point> points_;
  std::vector<CUevent> idle_;
};

}  // namespace kvgpu::worker
