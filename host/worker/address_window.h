// SPDX-License-Identifier: Apache-2.0
// Makes the kernel place whatever libcuda maps below the session's window (PROTOCOL.md §2.2), so
// that the guest can keep the same addresses free.
#pragma once

#include <cstddef>
#include <string>

#include "session.h"

namespace kvgpu::worker {

// Before libcuda is loaded. Fills all free address space from the window upwards.
[[nodiscard]] bool fill_above_window(uint64_t window, std::string* error);

// The session's block at its address; null and `error` on failure.
std::byte* map_block(const SessionConfig& config, std::string* error);

}  // namespace kvgpu::worker
