// SPDX-License-Identifier: Apache-2.0
// What a worker gives up before it reads the guest's first record.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvgpu::worker {

struct JailConfig {
  uid_t uid;  // its owner's workers all have this one
  gid_t gid;
  uint64_t max_tasks;       // of the uid: processes and threads; 0: as many as kvgpud
  std::string driver_path;  // its folder stays visible, read-only
  std::vector<pid_t> join;  // the owner's other workers: their /dev/shm is this one's, too
};

inline constexpr uint64_t MAX_DESCRIPTORS = 8192;
// Of each file, the log and what stands in for standard output.
inline constexpr uint64_t MAX_FILE_BYTES = 256ull << 20;

// New mount, network and IPC namespaces; a root with nothing but system libraries, /proc, /sys and
// the device nodes that libcuda needs; no capabilities; another uid. Needs root. False: `error`
// says which step failed.
[[nodiscard]] bool enter_jail(const JailConfig& config, std::string* error);

// The part that needs no root: no new privileges, no core files, limits, and no descriptors above
// `last_fd`.
[[nodiscard]] bool drop_inherited(int last_fd, std::string* error);

}  // namespace kvgpu::worker
