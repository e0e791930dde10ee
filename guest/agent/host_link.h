// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "event_loop.h"
#include "frames.h"
#include "unique_fd.h"

namespace kvgpu::agent {

// The byte stream to kvgpud: a virtio-serial port, or a unix socket in its place.
//
// A port stays open while nobody listens on the host; then it polls as hung up and reads as empty.
// It is watched edge-triggered, so that this state costs nothing.
class HostLink {
 public:
  struct Events {
    std::function<void()> connected;
    std::function<void()> disconnected;
    std::function<void(const Frame&)> frame;
    std::function<void()> writable;  // the backlog is gone
  };

  HostLink(EventLoop& loop, Events events) : loop_(loop), events_(std::move(events)) {}

  bool is_connected() const { return connected_; }
  bool is_congested() const { return backlog_.size() >= MAX_BACKLOG_BYTES; }
  // Opens PATH if need be and looks whether the host is there.
  void try_connect(const std::string& path);
  // Queues and writes as far as possible; what is queued is lost when the link goes down.
  void send(const Frame& frame);

 private:
  static constexpr size_t MAX_BACKLOG_BYTES = 64 << 10;  // above it clients are not read

  void open_port(const std::string& path);
  void on_event(uint32_t events);
  void set_connected(bool connected);
  void read_frames();
  void flush();

  EventLoop& loop_;
  Events events_;
  UniqueFd fd_;
  bool is_socket_ = false;
  bool connected_ = false;
  FrameReader reader_;
  std::deque<uint8_t> backlog_;
};

}  // namespace kvgpu::agent
