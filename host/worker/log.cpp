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
std::atomic<uint64_t> n_lost{0};   // lines; the disk may be full
constexpr char FULL[] = "the log is full: nothing more is logged\n";

void say_what_is_lost() {
  const uint64_t n = n_lost.exchange(0, std::memory_order_relaxed);
  if (n == 0) return;
  char line[64];
  const int len = std::snprintf(line, sizeof line, "%llu line(s) before this one are lost\n",
                                static_cast<unsigned long long>(n));
  (void)!write(STDERR_FILENO, line, len);
}

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
  // One write a line: threads do not mix. A line that the disk does not take is counted instead.
  if (write(STDERR_FILENO, line, len) == len) {
    say_what_is_lost();
  } else {
    n_lost.fetch_add(1, std::memory_order_relaxed);
  }
  const auto len_bytes = static_cast<uint64_t>(len);
  const uint64_t before = n_bytes.fetch_add(len_bytes, std::memory_order_relaxed);
  if (before < MAX_BYTES && before + len_bytes >= MAX_BYTES) {
    (void)!write(STDERR_FILENO, FULL, sizeof FULL - 1);
  }
}

}  // namespace kvgpu::worker
