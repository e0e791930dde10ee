// SPDX-License-Identifier: Apache-2.0
// The agent's table on disk, so that its restart ends nobody's session.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace kvgpu::agent {

using BootId = std::array<uint8_t, 16>;

struct SavedSession {
  uint32_t session = 0;
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  uint64_t block_offset = 0;
};

// The kernel's boot id; 32 hexadecimal digits, dashes allowed, if TEXT is not empty.
[[nodiscard]] bool read_boot_id(const std::string& text, BootId& boot_id);

[[nodiscard]] bool save_sessions(const std::string& path, const BootId& boot_id,
                                 const std::vector<SavedSession>& sessions);
// What this boot's agent saved last; empty if there is none or it is of another boot.
std::vector<SavedSession> load_sessions(const std::string& path, const BootId& boot_id);

}  // namespace kvgpu::agent
