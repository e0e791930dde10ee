// SPDX-License-Identifier: Apache-2.0
#include "quiet.h"

#include <algorithm>

#include "session.h"
#include "spin.h"

namespace kvgpu::worker {

Quiet::Quiet(Session& session, int device) : driver_(*session.driver) {
  std::vector<std::shared_ptr<Stream>> streams = session.handles.streams_of(device);
  // What is asked of one stream may spoil the capture of another one. One whose creation has failed
  // late is none to the driver.
  const auto refuses = [&](const std::shared_ptr<Stream>& stream) {
    bool refused = false;
    stream->context->while_there([&] {
      refused = session.enter(*stream->context) != CUDA_SUCCESS ||
                (stream->raw != nullptr && captures(driver_, stream->raw));
    });
    return refused;
  };
  if (std::ranges::any_of(streams, refuses)) return;
  for (const auto& stream : streams) {
    stream->context->while_there([&] {
      if (session.enter(*stream->context) != CUDA_SUCCESS) return;
      CUevent event = stream->window.event_behind(driver_, stream->raw);
      if (event != nullptr) events_.push_back({stream->context, event});
    });
  }
}

// The events of a context that has ended went with it.
Quiet::~Quiet() {
  for (const Behind& behind : events_) {
    behind.context->while_there([&] { (void)driver_.cuEventDestroy_v2(behind.event); });
  }
}

void Quiet::wait() {
  for (const Behind& behind : events_) {
    // Any other answer ends the wait: if the context is dead, the call itself will say so.
    const auto is_under_way = [&] {
      CUresult result = CUDA_SUCCESS;
      behind.context->while_there([&] { result = driver_.cuEventQuery(behind.event); });
      return result == CUDA_ERROR_NOT_READY;
    };
    for (Spin spin; is_under_way();) spin.wait();
  }
}

}  // namespace kvgpu::worker
