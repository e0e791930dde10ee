// SPDX-License-Identifier: Apache-2.0
#include "callbacks.h"

#include <cuda.h>

#include "event_ring.h"

namespace kvgpu::worker {

void Callbacks::relay(EventRing& events, uint64_t guest_function, int status) {
  uint64_t token;
  {
    const std::lock_guard lock(mutex_);
    token = next_token_++;
    waiting_.insert(token);
  }
  events.send(wire::Op::CALLBACK, wire::Callback{token, guest_function, status, 0});
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [&] { return !waiting_.contains(token); });
}

bool Callbacks::complete(uint64_t token) {
  const std::lock_guard lock(mutex_);
  if (waiting_.erase(token) == 0) return false;
  completed_.notify_all();
  return true;
}

}  // namespace kvgpu::worker
