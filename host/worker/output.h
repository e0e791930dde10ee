// SPDX-License-Identifier: Apache-2.0
// The driver prints the device's printf on our standard output; it belongs on the guest's.
#pragma once

#include <cstdint>
#include <mutex>

namespace kvgpu::worker {

class EventRing;

class Output {
 public:
  // Puts a memory file in the place of descriptor 1: writing there never blocks, whoever reads
  // when.
  [[nodiscard]] bool capture();
  // Sends what has been printed since. Called after each real synchronisation, before its reply.
  void deliver(EventRing& events);

 private:
  static constexpr uint64_t MAX_UNDELIVERED_BYTES = 16u << 20;

  std::mutex mutex_;
  uint64_t delivered_bytes_ = 0;  // of the file; punched out
};

}  // namespace kvgpu::worker
