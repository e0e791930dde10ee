// SPDX-License-Identifier: Apache-2.0
// A session in a VM that shares no memory with its host (PROTOCOL.md §7): the agent plays the
// worker's part in a memfd of its own, and frames over the port carry what changes.
//
// Trusts neither the client nor the host. Never blocks; whoever owns it calls pump() when there may
// be something to do.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frames.h"
#include "kvgpu/layout.h"
#include "kvgpu/mirror.h"
#include "kvgpu/ring.h"
#include "kvgpu/stream_form.h"
#include "unique_fd.h"

namespace kvgpu::agent {

class StreamSession {
 public:
  using Clock = std::chrono::steady_clock;
  struct Link {
    std::function<void(const Frame&)> send;
    std::function<bool()> is_congested;
  };

  // Empty if memory or address space is missing, or if `opened` makes no sense.
  static std::unique_ptr<StreamSession> make(const control::Opened& opened, Link link);
  ~StreamSession();
  StreamSession(const StreamSession&) = delete;
  StreamSession& operator=(const StreamSession&) = delete;

  int fd() const { return fd_.get(); }  // what the client maps in the region's place

  // Takes what client and host have left, as far as the link has room.
  void pump();
  // Takes a frame of the host's; pump() does what follows from it.
  void on_frame(const Frame& frame);
  // Why the session cannot go on; empty while it can.
  const std::string& failure() const { return failure_; }
  // When pump() wants to be called although nothing happens; empty: not at all.
  std::optional<Clock::time_point> next_look() const;

 private:
  StreamSession(UniqueFd fd, const control::Opened& opened, Link link);
  bool map();

  bool step();
  bool take_records();
  void take_share(const std::byte* body, uint32_t len_bytes);
  bool send_changes();
  bool send_records();
  bool fall_asleep();
  void sweep_soon();
  bool sweep_is_due() const;

  void apply(const Frame& frame);
  bool deliver_events();
  template <typename Body>
  Body read_body(const Frame& frame);
  void fail(const char* what);

  UniqueFd fd_;
  const uint32_t session_;
  const uint64_t region_bytes_;
  const uint64_t block_off_;
  const uint32_t version_;
  const Link link_;
  std::string failure_;
  std::byte* region_ = nullptr;
  HostPage* host_page_ = nullptr;
  GuestPage* guest_page_ = nullptr;
  Mirror mirror_;

  Consumer commands_;
  std::vector<uint8_t> records_;  // taken from the ring, not sent yet
  uint64_t sent_bytes_ = 0;
  uint64_t host_taken_bytes_ = 0;
  uint64_t n_sleeps_ = 0;
  int n_shares_left_ = 0;  // of SHARE records, in this turn
  bool is_sweeping_ = false;
  uint64_t next_token_ = 0;  // of host functions: to be sent after the sweep
  uint64_t sent_token_ = 0;

  Producer events_;
  std::vector<uint8_t> waiting_;  // events that have come and are not in the ring yet
  uint64_t taken_bytes_ = 0;
  uint64_t credited_bytes_ = 0;

  Clock::time_point next_sweep_{}, sweep_begin_{};
  Clock::duration sweep_pause_{};
  Clock::time_point next_room_look_{};
  Clock::duration room_pause_{};
};

}  // namespace kvgpu::agent
