// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>

namespace kvgpu::worker {

void log(const char* format, ...) {
  static const auto start = std::chrono::steady_clock::now();
  const double now_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  char line[1024];
  int len = std::snprintf(line, sizeof line, "[%10.6f] ", now_s);
  va_list args;
  va_start(args, format);
  const int wrote = std::vsnprintf(line + len, sizeof line - 1 - len, format, args);
  va_end(args);
  len = std::min<int>(len + std::max(wrote, 0), sizeof line - 2);
  line[len++] = '\n';
  (void)!write(STDERR_FILENO, line, len);  // one write a line: threads do not mix
}

}  // namespace kvgpu::worker
