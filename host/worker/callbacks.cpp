// SPDX-License-Identifier: Apache-2.0
#include "callbacks.h"

#include "event_ring.h"
#include "spin.h"

namespace kvgpu::worker {

uint64_t Callbacks::post(EventRing& events, uint64_t guest_function, int status) {
  const std::lock_guard lock(mutex_);
  const uint64_t token = ++last_token_;
  events.send(wire::Op::CALLBACK, wire::Callback{token, guest_function, status, 0});
  return token;
}

void Callbacks::relay(EventRing& events, uint64_t guest_function, int status) {
  const uint64_t token = post(events, guest_function, status);
  Spin spin;
  // acquire: pairs with the guest's release; what its function wrote is visible to the GPU's next
  // work
  while (load_acquire(page_->callback_done) < token) spin.wait();
}

}  // namespace kvgpu::worker
