// SPDX-License-Identifier: Apache-2.0
// The worker's end of a byte-stream session (PROTOCOL.md §7): a thread that plays the guest's part
// in the region, so that rings and everything behind them are the same.
//
// Feeds the command ring, empties the event ring, and keeps the shared ranges equal to the guest's.
// Trusts nothing that comes: what breaks the protocol ends the session. Sleeps while nothing
// happens.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kvgpu/control.h"
#include "kvgpu/layout.h"
#include "kvgpu/mirror.h"
#include "kvgpu/ring.h"
#include "kvgpu/stream_form.h"

namespace kvgpu::worker {

class Session;

inline constexpr int STREAM_FD = 6;

class StreamEnd {
 public:
  StreamEnd() = default;

  // Makes the shadow. Early: later the kernel would place it among the GPU's addresses.
  [[nodiscard]] bool open(uint64_t window, int region_fd, uint64_t region_bytes,
                          std::string* error);
  // Written to when there is something for the guest; -1 before open().
  int wake_fd() const { return wake_fd_; }

  // Before step().
  void attach(Session& session);
  // Does what can be done now; false: there is nothing.
  bool step();
  // step() until the session ends, and sleep; does not return.
  [[noreturn]] void serve();

 private:
  using Clock = std::chrono::steady_clock;

  bool forward_events();
  bool take_events();
  void send_changes();
  void send_status();
  bool feed_commands();
  void wake_reader();
  void sleep(bool blocked);
  bool receive();
  void handle(control::Type type, const std::byte* payload, uint32_t len_bytes);
  void share(const stream_form::Share& range);
  void apply(const std::byte* payload, uint32_t len_bytes);
  template <typename Body>
  Body read_body(const std::byte* payload, uint32_t len_bytes);
  void send(control::Type type, const void* payload, uint32_t len_bytes);
  [[noreturn]] static void violation(const char* what);

  Session* session_ = nullptr;
  GuestPage* guest_page_ = nullptr;
  Mirror mirror_;
  uint64_t region_begin_ = 0;
  int wake_fd_ = -1;

  Producer commands_;
  std::vector<std::byte> waiting_;  // records that have come; from fed_ on they are not in the ring
  size_t fed_ = 0;
  uint64_t taken_bytes_ = 0;     // of records, since the session began
  uint64_t credited_bytes_ = 0;  // what the guest knows of them

  Consumer events_;
  std::vector<std::byte> batch_;
  uint64_t sent_bytes_ = 0;  // of events
  uint64_t guest_taken_bytes_ = 0;
  uint64_t told_error_word_ = 0;

  Clock::time_point next_sweep_{};
  Clock::duration sweep_pause_{};
};

}  // namespace kvgpu::worker
