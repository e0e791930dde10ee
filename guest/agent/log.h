// SPDX-License-Identifier: Apache-2.0
// One line per event on standard error; the service manager adds time and keeps it.
#pragma once

#include <cstdarg>
#include <cstdio>

namespace kvgpu::agent {

__attribute__((format(printf, 1, 2))) inline void log(const char* format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  std::fprintf(stderr, "kvgpu-agentd: %s\n", line);
}

}  // namespace kvgpu::agent
