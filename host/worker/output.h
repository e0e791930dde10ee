// SPDX-License-Identifier: Apache-2.0
// The driver prints the device's printf on our standard output, failed assertions on our standard
// error; both belong to the guest. Our own log goes where standard error went before.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace kvgpu::worker {

class EventRing;

// What is written to one of our descriptors.
class Captured {
 public:
  explicit constexpr Captured(int descriptor) : descriptor_(descriptor) {}

  // Puts a memory file in the descriptor's place: writing there never blocks, whoever reads when.
  [[nodiscard]] bool capture();
  // Sends what has been written since.
  void deliver(EventRing& events);
  // Copies that there; may be called by a signal handler.
  void copy_rest(int to) const;

 private:
  static constexpr uint64_t MAX_UNDELIVERED_BYTES = 16u << 20;
  // A file may not grow for ever (jail.h), so a new one takes its place in time.
  static constexpr uint64_t LAST_OFFSET = 64u << 20;

  void send(int fd, EventRing& events);
  void replace();

  const int descriptor_;
  std::atomic<uint64_t> delivered_bytes_{0};  // of the file; punched out
  int replaced_fd_ = -1;                      // somebody may have been writing into it
  uint64_t replaced_bytes_ = 0;               // delivered of it
};

class Output {
 public:
  [[nodiscard]] bool capture();
  // Called after each real synchronisation, before its reply.
  void deliver(EventRing& events);
  // At the process's end, whichever: what nobody can be told any more goes into the log.
  static void log_rest();

 private:
  std::mutex mutex_;
};

}  // namespace kvgpu::worker
