// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "event_ring.h"
#include "log.h"

namespace kvgpu::worker {

namespace {

// Of the process, as its descriptors are.
constinit Captured standard_output{STDOUT_FILENO};
constinit Captured standard_error{STDERR_FILENO};

}  // namespace

bool Captured::capture() {
  const int fd = memfd_create("kvgpu-output", MFD_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = fcntl(fd, F_SETFL, O_APPEND) == 0 && dup2(fd, descriptor_) >= 0;
  close(fd);
  return ok;
}

void Captured::deliver(EventRing& events) {
  if (replaced_fd_ >= 0) {
    const uint64_t of_new = delivered_bytes_.exchange(replaced_bytes_);
    send(replaced_fd_, events);
    replaced_bytes_ = delivered_bytes_.exchange(of_new);
    close(std::exchange(replaced_fd_, -1));
  }
  send(descriptor_, events);
  if (delivered_bytes_ > LAST_OFFSET) replace();
}

void Captured::send(int fd, EventRing& events) {
  struct stat file{};
  if (fstat(fd, &file) != 0) return;
  const uint64_t written_bytes = static_cast<uint64_t>(file.st_size);
  if (written_bytes - delivered_bytes_ > MAX_UNDELIVERED_BYTES) {
    const uint64_t dropped_bytes = written_bytes - delivered_bytes_ - MAX_UNDELIVERED_BYTES;
    log("%llu bytes of the device's output are dropped: more than 16 MiB at once",
        static_cast<unsigned long long>(dropped_bytes));
    delivered_bytes_ += dropped_bytes;
  }
  char chunk[8192];
  for (;;) {
    const ssize_t n = pread(fd, chunk, sizeof chunk, static_cast<off_t>(delivered_bytes_));
    if (n <= 0) break;
    const wire::Output head{static_cast<uint32_t>(n), descriptor_ == STDERR_FILENO ? 1u : 0u};
    events.send(wire::Op::OUTPUT, head, {chunk, static_cast<uint32_t>(n)});
    delivered_bytes_ += static_cast<uint64_t>(n);
  }
  // Never truncated: somebody may be writing.
  if (delivered_bytes_ > 0) {
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    static_cast<off_t>(delivered_bytes_));
  }
}

void Captured::replace() {
  replaced_fd_ = fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  if (replaced_fd_ < 0) return;
  if (!capture()) {
    close(std::exchange(replaced_fd_, -1));
    return;
  }
  replaced_bytes_ = delivered_bytes_.exchange(0);
}

void Captured::copy_rest(int to) const {
  char chunk[4096];
  uint64_t offset = delivered_bytes_;
  for (ssize_t n; (n = pread(descriptor_, chunk, sizeof chunk, static_cast<off_t>(offset))) > 0;) {
    (void)!write(to, chunk, static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

bool Output::capture() {
  return log_elsewhere() && standard_output.capture() && standard_error.capture();
}

void Output::deliver(EventRing& events) {
  const std::lock_guard lock(mutex_);
  std::fflush(stdout);
  standard_output.deliver(events);
  standard_error.deliver(events);
}

void Output::log_rest() {
  if (log_descriptor() != STDERR_FILENO) standard_error.copy_rest(log_descriptor());
}

}  // namespace kvgpu::worker
