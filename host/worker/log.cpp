// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>

namespace kvgpu::worker {

namespace {

// What a session may write is bounded: its guest chooses how many errors it makes.
constexpr uint64_t MAX_BYTES = 16u << 20;
std::atomic<uint64_t> n_bytes{0};  // relaxed: a line more or less
constexpr char FULL[] = "the log is full: nothing more is logged\n";

}  // namespace

void log(const char* format, ...) {
  static const auto start = std::chrono::steady_clock::now();
  const double now_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (n_bytes >= MAX_BYTES) return;
  char line[1024];
  int len = std::snprintf(line, sizeof line, "[%10.6f] ", now_s);
  va_list args;
  va_start(args, format);
  const int wrote = std::vsnprintf(line + len, sizeof line - 1 - len, format, args);
  va_end(args);
  len = std::min<int>(len + std::max(wrote, 0), sizeof line - 2);
  line[len++] = '\n';
  (void)!write(STDERR_FILENO, line, len);  // one write a line: threads do not mix
  const auto len_bytes = static_cast<uint64_t>(len);
  const uint64_t before = n_bytes.fetch_add(len_bytes, std::memory_order_relaxed);
  if (before < MAX_BYTES && before + len_bytes >= MAX_BYTES) {
    (void)!write(STDERR_FILENO, FULL, sizeof FULL - 1);
  }
}

}  // namespace kvgpu::worker
