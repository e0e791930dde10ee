// SPDX-License-Identifier: Apache-2.0
// What a worker gives up before it reads the guest's first record.
#pragma once

#include <sys/types.h>

#include <string>

namespace kvgpu::worker {

struct JailConfig {
  uid_t uid;
  gid_t gid;
  std::string driver_path;  // its folder stays visible, read-only
};

// New mount, network and IPC namespaces; a root with nothing but system libraries, /proc, /sys and
// /dev/nvidia*; no capabilities, no new privileges; another uid. Needs root. False: `error` says
// which step failed.
[[nodiscard]] bool enter_jail(const JailConfig& config, std::string* error);

// The part that needs no root: no new privileges, no descriptors above `last_fd`.
[[nodiscard]] bool drop_inherited(int last_fd, std::string* error);

}  // namespace kvgpu::worker
