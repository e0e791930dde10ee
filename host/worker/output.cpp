// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

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
  struct stat file{};
  if (fstat(STDOUT_FILENO, &file) != 0) return;
  const uint64_t printed_bytes = static_cast<uint64_t>(file.st_size);
  if (printed_bytes - delivered_bytes_ > MAX_UNDELIVERED_BYTES) {
    const uint64_t dropped_bytes = printed_bytes - delivered_bytes_ - MAX_UNDELIVERED_BYTES;
    log("%llu bytes of the device's output are dropped: more than 16 MiB at once",
        static_cast<unsigned long long>(dropped_bytes));
    delivered_bytes_ += dropped_bytes;
  }
  char chunk[8192];
  for (;;) {
    const ssize_t n =
        pread(STDOUT_FILENO, chunk, sizeof chunk, static_cast<off_t>(delivered_bytes_));
    if (n <= 0) break;
    events.send(wire::Op::OUTPUT, wire::Output{static_cast<uint32_t>(n), 0},
                {chunk, static_cast<uint32_t>(n)});
    delivered_bytes_ += static_cast<uint64_t>(n);
  }
  // Never truncated: somebody may be printing.
  if (delivered_bytes_ > 0) {
    (void)fallocate(STDOUT_FILENO, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    static_cast<off_t>(delivered_bytes_));
  }
}

}  // namespace kvgpu::worker
