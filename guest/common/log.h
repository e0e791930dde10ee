// SPDX-License-Identifier: Apache-2.0
// Lines on the program's standard error, or in a file: docs/settings.md. Without a setting there
// are only those that the program's user must know. A line that is not wanted is not formatted.
#pragma once

#include <atomic>
#include <optional>
#include <string_view>

namespace kvgpu::guest {

enum class Level { OFF, ERROR, WARNING, INFO, DEBUG, TRACE };

// The level of a setting's word: off, error, warn, info, debug, trace.
std::optional<Level> level_of(std::string_view word);

inline std::atomic<Level> log_limit{Level::TRACE};  // until the settings are known

// For what is said often: one relaxed load where it is not wanted.
inline bool logs(Level level) { return level <= log_limit.load(std::memory_order_relaxed); }

__attribute__((format(printf, 2, 3))) void log(Level level, const char* format, ...);

// From the settings; `fd` stays open.
void start_log(Level limit, int fd);

}  // namespace kvgpu::guest
