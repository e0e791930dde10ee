// SPDX-License-Identifier: Apache-2.0
// What standard error was at the start is the session's log: one line each, with seconds since
// then.
#pragma once

namespace kvgpu::worker {

__attribute__((format(printf, 1, 2))) void log(const char* format, ...);

// Standard error becomes something else: the log, and what sanitizers report, stay where they are.
[[nodiscard]] bool log_elsewhere();
int log_descriptor();

}  // namespace kvgpu::worker
