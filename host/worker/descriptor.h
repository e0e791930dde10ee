// SPDX-License-Identifier: Apache-2.0
// Owns a file descriptor.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace kvgpu::worker {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  Descriptor duplicate() const { return Descriptor(fd_ < 0 ? -1 : fcntl(fd_, F_DUPFD_CLOEXEC, 0)); }

 private:
  int fd_ = -1;  // none
};

}  // namespace kvgpu::worker
