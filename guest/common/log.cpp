// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>

#include "settings.h"

namespace kvgpu::guest {

namespace {

constexpr std::string_view WORDS[] = {"off", "error", "warn", "info", "debug", "trace"};
std::atomic<int> log_fd{STDERR_FILENO};

}  // namespace

std::optional<Level> level_of(std::string_view word) {
  const auto* const found = std::ranges::find(WORDS, word);
  if (found == std::end(WORDS)) return std::nullopt;
  return static_cast<Level>(found - std::begin(WORDS));
}

void start_log(Level limit, int fd) {
  log_fd.store(fd, std::memory_order_relaxed);
  log_limit.store(limit, std::memory_order_relaxed);
}

void log(Level level, const char* format, ...) {
  if (!logs(level)) return;
  (void)settings();  // the first line of all: now the limit is known
  if (!logs(level)) return;
  char line[1024];
  const int fd = log_fd.load(std::memory_order_relaxed);
  // Several processes may share a file.
  int len = fd == STDERR_FILENO
                ? std::snprintf(line, sizeof line, "kvgpu: ")
                : std::snprintf(line, sizeof line, "kvgpu[%d]: ", static_cast<int>(getpid()));
  const int room = static_cast<int>(sizeof line) - len - 1;
  va_list args;
  va_start(args, format);
  const int n = std::vsnprintf(line + len, static_cast<size_t>(room), format, args);
  va_end(args);
  len += std::clamp(n, 0, room - 1);
  line[len++] = '\n';
  (void)!write(fd, line, static_cast<size_t>(len));
}

}  // namespace kvgpu::guest
