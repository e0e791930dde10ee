// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "unique_fd.h"

namespace kvgpu::agent {

// A process that cannot be mistaken for a later one with the same number.
struct Process {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // since boot: /proc/PID/stat, field 22
  UniqueFd pidfd;            // becomes readable when the process has ended
};

// The descriptor is empty if there is no such process (any more).
Process watch_process(pid_t pid);

}  // namespace kvgpu::agent
