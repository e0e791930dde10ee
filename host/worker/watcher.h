// SPDX-License-Identifier: Apache-2.0
// A GPU that faults writes no number: somebody has to ask. Asks only while numbers are outstanding,
// and on a stream of our own, so that no capture of the guest is disturbed; sleeps otherwise.
#pragma once

#include <atomic>
#include <cstdint>

#include "kvgpu/barrier.h"

namespace kvgpu::worker {

class Session;

class Watcher {
 public:
  explicit Watcher(Session* session) : session_(session) {}

  void start();
  // A number has been given to a stream.
  void wake() {
    // The number before our look: pairs with the fence in run().
    fence_full();
    if (sleeps_.load(std::memory_order_relaxed) != 0) end_sleep();
  }

 private:
  [[noreturn]] void run();
  bool is_outstanding() const;
  void look_for_faults() const;
  void end_sleep();

  Session* const session_;
  std::atomic<uint32_t> sleeps_{0};
};

}  // namespace kvgpu::worker
