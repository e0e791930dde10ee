// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "event_ring.h"
#include "log.h"

namespace kvgpu::worker {

bool Output::capture() {
  const int fd = memfd_create("kvgpu-stdout", MFD_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = fcntl(fd, F_SETFL, O_APPEND) == 0 && dup2(fd, STDOUT_FILENO) >= 0;
  close(fd);
  return ok;
}

void Output::deliver(EventRing& events) {
  const std::lock_guard lock(mutex_);
  std::fflush(stdout);
  if (replaced_fd_ >= 0) {
    std::swap(delivered_bytes_, replaced_bytes_);
    send(replaced_fd_, events);
    std::swap(delivered_bytes_, replaced_bytes_);
    close(std::exchange(replaced_fd_, -1));
  }
  send(STDOUT_FILENO, events);
  if (delivered_bytes_ > LAST_OFFSET) replace();
}

void Output::send(int fd, EventRing& events) {
  struct stat file{};
  if (fstat(fd, &file) != 0) return;
  const uint64_t printed_bytes = static_cast<uint64_t>(file.st_size);
  if (printed_bytes - delivered_bytes_ > MAX_UNDELIVERED_BYTES) {
    const uint64_t dropped_bytes = printed_bytes - delivered_bytes_ - MAX_UNDELIVERED_BYTES;
    log("%llu bytes of the device's output are dropped: more than 16 MiB at once",
        static_cast<unsigned long long>(dropped_bytes));
    delivered_bytes_ += dropped_bytes;
  }
  char chunk[8192];
  for (;;) {
    const ssize_t n = pread(fd, chunk, sizeof chunk, static_cast<off_t>(delivered_bytes_));
    if (n <= 0) break;
    events.send(wire::Op::OUTPUT, wire::Output{static_cast<uint32_t>(n), 0},
                {chunk, static_cast<uint32_t>(n)});
    delivered_bytes_ += static_cast<uint64_t>(n);
  }
  // Never truncated: somebody may be printing.
  if (delivered_bytes_ > 0) {
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    static_cast<off_t>(delivered_bytes_));
  }
}

void Output::deliver_assertions(EventRing& events) {
  constexpr std::string_view SAYS = "] Assertion `", ENDS = "` failed.\n";
  const std::lock_guard lock(mutex_);
  std::string text;
  char chunk[8192];
  while (text.size() < MAX_UNDELIVERED_BYTES) {
    const off_t at = static_cast<off_t>(log_read_bytes_ + text.size());
    const ssize_t n = pread(STDERR_FILENO, chunk, sizeof chunk, at);
    if (n <= 0) break;
    text.append(chunk, static_cast<size_t>(n));
  }
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    const std::string_view line(text.data() + begin, end + 1 - begin);
    const bool is_one = line.find(SAYS) != line.npos && line.ends_with(ENDS);
    if (!is_one || line.size() > sizeof chunk) continue;
    const auto len_bytes = static_cast<uint32_t>(line.size());
    events.send(wire::Op::OUTPUT, wire::Output{len_bytes, 1}, {text.data() + begin, len_bytes});
  }
  log_read_bytes_ += begin;
}

void Output::replace() {
  replaced_fd_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  if (replaced_fd_ < 0) return;
  if (!capture()) {
    close(std::exchange(replaced_fd_, -1));
    return;
  }
  replaced_bytes_ = std::exchange(delivered_bytes_, 0);
}

}  // namespace kvgpu::worker
