// SPDX-License-Identifier: Apache-2.0
// Host functions of the guest. In the worker each is a real one (cuLaunchHostFunc) that asks the
// guest to run its function and waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace kvgpu::worker {

class EventRing;

class Callbacks {
 public:
  // Called on a thread of the driver: returns when the guest has run function `guest_function`, or
  // the session ends.
  void relay(EventRing& events, uint64_t guest_function, int status);
  // The guest's answer. False: nobody waits for this token.
  [[nodiscard]] bool complete(uint64_t token);

 private:
  std::mutex mutex_;
  std::condition_variable completed_;
  std::unordered_set<uint64_t> waiting_;
  uint64_t next_token_ = 1;
};

}  // namespace kvgpu::worker
