// SPDX-License-Identifier: Apache-2.0
#include "address_space.h"

#include <sys/mman.h>

#include <array>

#include "kvgpu/layout.h"
#include "log.h"

namespace kvgpu::guest {

namespace {

uint64_t window;
std::array<bool, std::size(LOW_RANGES)> low_reserved;

bool reserve(uint64_t begin, uint64_t end) {
  constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  auto* const wanted = reinterpret_cast<void*>(begin);
  void* const got = mmap(wanted, end - begin, PROT_NONE, FLAGS, -1, 0);
  if (got == wanted) return true;
  if (got != MAP_FAILED) munmap(got, end - begin);  // a kernel that does not know the flag
  return false;
}

bool reserve_window(uint64_t candidate) {
  const uint64_t begin = candidate - DEVICE_WINDOW_BYTES;
  const uint64_t end = candidate + SESSION_WINDOW_BYTES;
  return reserve(begin, end);
}

// When the library is loaded: the earlier, the emptier the address space.
__attribute__((constructor)) void reserve_early() { reserve_address_space(); }

}  // namespace

uint64_t reserve_address_space() {
  if (window != 0) return window;
  for (const uint64_t candidate : WINDOWS) {
    if (reserve_window(candidate)) {
      window = candidate;
      break;
    }
  }
  if (window == 0) return 0;
  for (size_t i = 0; i < std::size(LOW_RANGES); ++i) {
    low_reserved[i] = reserve(LOW_RANGES[i].begin, LOW_RANGES[i].end);
  }
  return window;
}

bool is_reserved_for_devices(uint64_t address, uint64_t len_bytes) {
  const auto inside = [&](uint64_t begin, uint64_t end) {
    return address >= begin && address < end && len_bytes <= end - address;
  };
  for (size_t i = 0; i < std::size(LOW_RANGES); ++i) {
    if (low_reserved[i] && inside(LOW_RANGES[i].begin, LOW_RANGES[i].end)) return true;
  }
  return window != 0 && inside(window - DEVICE_WINDOW_BYTES, window);
}

bool map_region(int fd, uint64_t region_off, uint64_t len_bytes) {
  return map_region_at(window + region_off, fd, window + region_off, len_bytes);
}

bool map_region_at(uint64_t address, int fd, uint64_t heap, uint64_t len_bytes) {
  return mmap(reinterpret_cast<void*>(address), len_bytes, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(heap - window)) != MAP_FAILED;
}

}  // namespace kvgpu::guest
