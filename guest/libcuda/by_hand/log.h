// SPDX-License-Identifier: Apache-2.0
// Lines on the program's standard error. Only what its user must know; KVGPU_LOG=debug says more,
// KVGPU_LOG=off nothing.
#pragma once

#include <string>

namespace kvgpu::guest {

enum class Level { WARNING, DEBUG };

__attribute__((format(printf, 2, 3))) void log(Level level, const char* format, ...);

}  // namespace kvgpu::guest
