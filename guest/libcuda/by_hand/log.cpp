// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvgpu::guest {

namespace {

int chosen_level() {
  const char* text = std::getenv("KVGPU_LOG");
  if (text == nullptr) return 0;
  if (std::strcmp(text, "off") == 0) return -1;
  return std::strcmp(text, "debug") == 0 ? 1 : 0;
}

}  // namespace

void log(Level level, const char* format, ...) {
  static const int limit = chosen_level();
  if (static_cast<int>(level) > limit) return;
  char line[1024] = "kvgpu: ";
  constexpr int PREFIX = 7;
  va_list args;
  va_start(args, format);
  const int n = std::vsnprintf(line + PREFIX, sizeof line - PREFIX - 1, format, args);
  va_end(args);
  int len = PREFIX + std::clamp<int>(n, 0, sizeof line - PREFIX - 2);
  line[len++] = '\n';
  (void)!write(STDERR_FILENO, line, len);
}

}  // namespace kvgpu::guest
