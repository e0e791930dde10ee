// SPDX-License-Identifier: Apache-2.0
// What a program's user may ask for: KVGPU_* in the environment, else the user's client.toml, else
// the system's. Less than the VM has, never more. docs/settings.md describes each.
#pragma once

#include <cstdint>
#include <string>

namespace kvgpu::guest {

struct Settings {
  // 0: all that the VM has.
  uint64_t devices = 0;
  uint64_t memory_mib = 0;  // on each device
  uint64_t compute_percent = 0;
  uint64_t sync = 0;  // 1: every call waits until the worker's has returned
  std::string log = "warn";
  std::string log_file;  // empty: standard error
  std::string trace;     // the file; empty: none
};

// Read at the first use, once; what is wrong in them is left out here and told by check_settings().
const Settings& settings();

// False, with a line that says where and what to do, if any is wrong.
[[nodiscard]] bool check_settings();

inline uint64_t memory_limit_bytes() { return settings().memory_mib << 20; }  // 0: none

}  // namespace kvgpu::guest
