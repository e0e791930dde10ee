// SPDX-License-Identifier: Apache-2.0
#include "quiet.h"

#include <algorithm>

#include "session.h"
#include "spin.h"

namespace kvgpu::worker {

namespace {

bool captures(const DriverTable& driver, const Stream& stream) {
  if (stream.raw == nullptr) return false;  // its creation has failed late
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return driver.cuStreamIsCapturing(stream.raw, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace

Quiet::Quiet(Session& session, int device) : driver_(*session.driver) {
  std::vector<std::shared_ptr<Stream>> streams = session.handles.streams_of(device);
  // What is asked of one stream may spoil the capture of another one.
  const auto refuses = [&](const std::shared_ptr<Stream>& stream) {
    return session.enter(*stream->context) != CUDA_SUCCESS || captures(driver_, *stream);
  };
  if (std::ranges::any_of(streams, refuses)) return;
  for (const auto& stream : streams) {
    if (session.enter(*stream->context) != CUDA_SUCCESS) continue;
    CUevent event = stream->window.event_behind(driver_, stream->raw);
    if (event != nullptr) events_.push_back(event);
  }
}

Quiet::~Quiet() {
  for (CUevent event : events_) (void)driver_.cuEventDestroy_v2(event);
}

void Quiet::wait() {
  for (CUevent event : events_) {
    // Any other answer ends the wait: if the context is dead, the call itself will say so.
    for (Spin spin; driver_.cuEventQuery(event) == CUDA_ERROR_NOT_READY;) spin.wait();
  }
}

}  // namespace kvgpu::worker
