// SPDX-License-Identifier: Apache-2.0
#include "host_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "device.h"
#include "log.h"

namespace kvgpu::agent {

namespace {

constexpr size_t READ_BYTES = 16 << 10;

UniqueFd connect_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return UniqueFd();
  std::memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (!fd || connect(fd.get(), generic, sizeof address) != 0) return UniqueFd();
  return fd;
}

}  // namespace

void HostLink::open_port(const std::string& path) {
  struct stat status{};
  if (path.empty() || stat(path.c_str(), &status) != 0) return;
  is_socket_ = S_ISSOCK(status.st_mode);
  fd_ = is_socket_ ? connect_socket(path)
                   : UniqueFd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd_) {
    if (!is_socket_) log("cannot open %s: %s", path.c_str(), std::strerror(errno));
    return;
  }
  const uint32_t events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  if (!loop_.add(fd_.get(), events, [this](uint32_t seen) { on_event(seen); })) fd_.reset();
}

void HostLink::try_connect(const std::string& path) {
  if (fd_ && !is_socket_ && !is_same_file(fd_.get(), path)) {  // unplugged, and another plugged in
    loop_.remove(fd_.get());
    fd_.reset();
  }
  if (!fd_) open_port(path);
  if (!fd_) return;
  pollfd poll_fd{fd_.get(), POLLIN | POLLOUT, 0};
  if (poll(&poll_fd, 1, 0) < 0) return;
  if (poll_fd.revents & POLLNVAL) return;
  set_connected((poll_fd.revents & POLLHUP) == 0);
}

void HostLink::on_event(uint32_t events) {
  set_connected((events & EPOLLHUP) == 0);
  if (connected_ && (events & (EPOLLIN | EPOLLRDHUP))) read_frames();
  if (connected_ && (events & EPOLLOUT)) flush();
}

void HostLink::set_connected(bool connected) {
  if (connected == connected_) return;
  connected_ = connected;
  reader_.clear();
  backlog_.clear();
  if (connected) {
    events_.connected();
    return;
  }
  if (is_socket_) {
    loop_.remove(fd_.get());
    fd_.reset();
  }
  events_.disconnected();
}

void HostLink::read_frames() {
  std::array<uint8_t, READ_BYTES> bytes;
  while (connected_) {
    const ssize_t n_bytes = read(fd_.get(), bytes.data(), bytes.size());
    if (n_bytes < 0 && errno == EINTR) continue;
    if (n_bytes < 0 && errno == EAGAIN) return;
    if (n_bytes <= 0) {
      set_connected(false);
      return;
    }
    reader_.push(std::span(bytes).first(static_cast<size_t>(n_bytes)));
    // A handler may drop the link, and with it what is left in the reader.
    while (const auto frame = reader_.next()) events_.frame(*frame);
    if (const size_t skipped = reader_.take_skipped()) {
      log("skipped %zu bytes from the host that belong to no frame", skipped);
    }
  }
}

void HostLink::send(const Frame& frame) {
  if (!connected_) return;
  const auto bytes = encode(frame);
  const bool was_empty = backlog_.empty();
  backlog_.insert(backlog_.end(), bytes.begin(), bytes.end());
  if (was_empty) flush();
}

void HostLink::flush() {
  const bool was_congested = is_congested();
  while (!backlog_.empty()) {
    std::array<uint8_t, READ_BYTES> bytes;
    const size_t want = std::min(bytes.size(), backlog_.size());
    std::copy_n(backlog_.begin(), want, bytes.begin());
    const ssize_t n_bytes = write(fd_.get(), bytes.data(), want);
    if (n_bytes < 0 && errno == EINTR) continue;
    if (n_bytes < 0 && errno == EAGAIN) break;
    if (n_bytes <= 0) {
      // The link is gone, and the loop will say so: callers of send() are not told in the middle.
      backlog_.clear();
      return;
    }
    backlog_.erase(backlog_.begin(), backlog_.begin() + n_bytes);
  }
  if (was_congested && !is_congested()) events_.writable();
}

}  // namespace kvgpu::agent
