// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "event_ring.h"

namespace kvgpu::worker {

bool Output::capture() {
  const int fd = memfd_create("kvgpu-stdout", MFD_CLOEXEC);
  if (fd < 0) return false;
  // Append: after deliver() has emptied the file the next write begins at its start again.
  const bool ok = fcntl(fd, F_SETFL, O_APPEND) == 0 && dup2(fd, STDOUT_FILENO) >= 0;
  close(fd);
  return ok;
}

void Output::deliver(EventRing& events) {
  const std::lock_guard lock(mutex_);
  std::fflush(stdout);
  char chunk[8192];
  off_t offset = 0;
  for (;;) {
    const ssize_t n = pread(STDOUT_FILENO, chunk, sizeof chunk, offset);
    if (n <= 0) break;
    events.send(wire::Op::OUTPUT, wire::Output{static_cast<uint32_t>(n), 0},
                {chunk, static_cast<uint32_t>(n)});
    offset += n;
  }
  if (offset > 0) (void)!ftruncate(STDOUT_FILENO, 0);
}

}  // namespace kvgpu::worker
