// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "unique_fd.h"

namespace kvgpu::agent {

// One thread, one epoll. A handler may add and remove descriptors, its own included.
class EventLoop {
 public:
  using Handler = std::function<void(uint32_t events)>;

  [[nodiscard]] bool open();
  [[nodiscard]] bool add(int fd, uint32_t events, Handler handler);
  void set_events(int fd, uint32_t events);
  void remove(int fd);
  // Waits for one event and handles it. A negative timeout waits for ever.
  void run_once(int timeout_ms);

 private:
  UniqueFd epoll_;
  std::unordered_map<int, std::shared_ptr<Handler>> handlers_;
};

}  // namespace kvgpu::agent
