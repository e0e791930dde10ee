// SPDX-License-Identifier: Apache-2.0
#include "stream_window.h"

namespace kvgpu::worker {

bool captures(const DriverTable& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool StreamWindow::is_full(const DriverTable& driver, CUstream stream) {
  if (!may_be_full()) return false;
  // Any answer but NOT_READY ends the wait: if the context is dead, the next call will say so.
  while (!points_.empty() && driver.cuEventQuery(points_.front().event) != CUDA_ERROR_NOT_READY) {
    done_ = points_.front().given;
    idle_.push_back(points_.front().event);
    points_.pop_front();
  }
  if (!may_be_full()) return false;
  // Without an event nobody would ever learn that there is room again.
  return !points_.empty() || record(driver, stream);
}

// False: a stream that captures executes nothing, or there is no event to be had.
bool StreamWindow::record(const DriverTable& driver, CUstream stream) {
  if (captures(driver, stream)) return false;
  CUevent event = nullptr;
  if (!idle_.empty()) {
    event = idle_.back();
    idle_.pop_back();
  } else if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    return false;
  }
  if (driver.cuEventRecord(event, stream) != CUDA_SUCCESS) {
    idle_.push_back(event);
    return false;
  }
  points_.push_back({event, given_});
  recorded_ = given_;
  return true;
}

CUevent StreamWindow::event_behind(const DriverTable& driver, CUstream stream) {
  if (given_ == done_) return nullptr;
  if (driver.cuStreamQuery(stream) == CUDA_SUCCESS) {
    for (const Point& point : points_) idle_.push_back(point.event);
    points_.clear();
    done_ = given_;
    return nullptr;
  }
  CUevent event = nullptr;
  if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return nullptr;
  if (driver.cuEventRecord(event, stream) == CUDA_SUCCESS) return event;
  (void)driver.cuEventDestroy_v2(event);
  return nullptr;
}

void StreamWindow::close(const DriverTable& driver) {
  for (const Point& point : points_) (void)driver.cuEventDestroy_v2(point.event);
  for (CUevent event : idle_) (void)driver.cuEventDestroy_v2(event);
  points_.clear();
  idle_.clear();
}

}  // namespace kvgpu::worker
