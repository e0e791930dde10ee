// SPDX-License-Identifier: Apache-2.0
#include "event_loop.h"

#include <sys/epoll.h>

namespace kvgpu::agent {

bool EventLoop::open() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  return static_cast<bool>(epoll_);
}

bool EventLoop::add(int fd, uint32_t events, Handler handler) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return false;
  handlers_[fd] = std::make_shared<Handler>(std::move(handler));
  return true;
}

void EventLoop::set_events(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

void EventLoop::run_once(int timeout_ms) {
  // One event at a time: with a batch, an event of a descriptor that an earlier handler closed
  // could reach the new owner of the same number.
  epoll_event event{};
  if (epoll_wait(epoll_.get(), &event, 1, timeout_ms) != 1) return;
  const auto found = handlers_.find(event.data.fd);
  if (found == handlers_.end()) return;
  const std::shared_ptr<Handler> handler = found->second;  // lives on if it removes itself
  (*handler)(event.events);
}

}  // namespace kvgpu::agent
