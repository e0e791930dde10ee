// SPDX-License-Identifier: Apache-2.0
// The driver prints the device's printf on our standard output, and on our standard error, which is
// the session's log, which assertions have failed; both belong on the guest's.
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
  // Sends those lines of the log that say which assertions have failed. After a fault.
  void deliver_assertions(EventRing& events);

 private:
  static constexpr uint64_t MAX_UNDELIVERED_BYTES = 16u << 20;
  // A file may not grow for ever (jail.h), so a new one takes its place in time.
  static constexpr uint64_t LAST_OFFSET = 64u << 20;

  void send(int fd, EventRing& events);
  void replace();

  std::mutex mutex_;
  uint64_t delivered_bytes_ = 0;  // of the file; punched out
  int replaced_fd_ = -1;          // somebody may have been printing into it
  uint64_t replaced_bytes_ = 0;   // delivered of it
  uint64_t log_read_bytes_ = 0;   // looked through for assertions
};

}  // namespace kvgpu::worker
