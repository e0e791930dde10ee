// SPDX-License-Identifier: Apache-2.0
// Where in a stream memory of pools was freed. A pool gives back what it keeps beyond its threshold
// once somebody has waited, in the driver, for an event behind the free (driver 580, an H200: to
// ask for it is not enough, nor to wait for another stream).
#pragma once

#include <utility>

#include "driver.h"

namespace kvgpu::worker {

// Of who executes the stream's records, as its window (stream_window.h). Where the driver has no
// event for it the pool keeps its memory longer.
class FreedPoint {
 public:
  void note() { is_new_ = true; }
  // Before the stream's next number, so that the event is over when the number is reached.
  void record(const DriverTable& driver, CUstream stream) {
    if (!is_new_) return;
    if (event_ == nullptr && driver.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING)) return;
    is_recorded_ = driver.cuEventRecord(event_, stream) == CUDA_SUCCESS;
    is_new_ = !is_recorded_;
  }
  // Where nobody has to wait for it.
  void wait_if_over(const DriverTable& driver) {
    if (!is_recorded_ || driver.cuEventQuery(event_) != CUDA_SUCCESS) return;
    (void)driver.cuEventSynchronize(event_);
    is_recorded_ = false;
  }
  void close(const DriverTable& driver) {
    if (event_ != nullptr) (void)driver.cuEventDestroy_v2(std::exchange(event_, nullptr));
    is_recorded_ = false;
  }

 private:
  CUevent event_ = nullptr;
  bool is_new_ = false, is_recorded_ = false;
};

}  // namespace kvgpu::worker
