// SPDX-License-Identifier: Apache-2.0
#include "address_window.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace kvgpu::worker {

namespace {

constexpr uint64_t USER_END = 0x7ffffffff000ull;
// The main thread's stack grows downwards into this; the kernel places no mapping there.
constexpr uint64_t STACK_GAP_BYTES = 64 * MIB;

bool fill(uint64_t begin, uint64_t end) {
  if (begin >= end) return true;
  constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  return mmap(reinterpret_cast<void*>(begin), end - begin, PROT_NONE, FLAGS, -1, 0) != MAP_FAILED;
}

}  // namespace

bool fill_above_window(uint64_t window, std::string* error) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   &std::fclose);
  if (maps == nullptr) {
    *error = "cannot read /proc/self/maps";
    return false;
  }
  uint64_t free_begin = window;
  char line[512];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    unsigned long begin, end;
    if (std::sscanf(line, "%lx-%lx", &begin, &end) != 2) continue;
    if (end <= window) continue;
    if (begin >= USER_END) break;
    const bool is_stack = std::strstr(line, "[stack]") != nullptr;
    const uint64_t free_end = is_stack && begin > STACK_GAP_BYTES ? begin - STACK_GAP_BYTES : begin;
    if (!fill(free_begin, free_end)) {
      *error = std::string("cannot reserve the address space above the window: ") + strerror(errno);
      return false;
    }
    free_begin = std::max<uint64_t>(free_begin, end);
  }
  (void)fill(free_begin,
             USER_END);  // above the stack and vdso: what is left is too small to matter
  return true;
}

std::byte* map_block(const SessionConfig& config, std::string* error) {
  auto* const address = reinterpret_cast<void*>(config.window + config.block_offset);
  void* const block = mmap(address, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                           config.region_fd, static_cast<off_t>(config.block_offset));
  if (block == MAP_FAILED) {
    *error = std::string("cannot map the session's block: ") + strerror(errno);
    return nullptr;
  }
  return static_cast<std::byte*>(block);
}

}  // namespace kvgpu::worker
