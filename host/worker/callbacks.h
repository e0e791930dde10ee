// SPDX-License-Identifier: Apache-2.0
// Host functions of the guest. In the worker each is a real one (cuLaunchHostFunc) that asks the
// guest to run its function and waits.
#pragma once

#include <cstdint>
#include <mutex>

#include "kvgpu/layout.h"

namespace kvgpu::worker {

class EventRing;

class Callbacks {
 public:
  explicit Callbacks(const GuestPage* page) : page_(page) {}

  // Called on a thread of the driver: returns when the guest has run function `guest_function`. A
  // session that ends ends the process.
  void relay(EventRing& events, uint64_t guest_function, int status);
  // The same for what nobody waits for.
  uint64_t post(EventRing& events, uint64_t guest_function, int status);

 private:
  const GuestPage* const page_;
  std::mutex mutex_;  // tokens enter the ring in their order
  uint64_t last_token_ = 0;
};

}  // namespace kvgpu::worker
