// SPDX-License-Identifier: Apache-2.0
// Standard error is the session's log: one line each, with seconds since the start.
#pragma once

namespace kvgpu::worker {

__attribute__((format(printf, 1, 2))) void log(const char* format, ...);

}  // namespace kvgpu::worker
