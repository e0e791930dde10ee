// SPDX-License-Identifier: Apache-2.0
#include "address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "kvgpu/layout.h"
#include "log.h"

namespace kvgpu::guest {

namespace {

uint64_t window;
std::array<bool, std::size(LOW_RANGES)> low_reserved;
std::shared_mutex mutex;
auto& others = *new std::map<uint64_t, uint64_t>;  // reserve_for_devices(): begin -> end
auto& kept = *new std::vector<AddressRange>;       // keep_for_devices(): never given back
constexpr uint64_t KEPT_GRAIN_BYTES = 2 * MIB;     // a device's memory has no smaller pages there

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

// Calls `visit` with each part of [begin, end) that is neither reserved from the start nor kept,
// until it answers false. Under the mutex.
template <typename Visit>
bool each_other_part(uint64_t begin, uint64_t end, Visit visit) {
  std::vector<AddressRange> reserved = kept;
  for (size_t i = 0; i < std::size(LOW_RANGES); ++i) {
    if (low_reserved[i]) reserved.push_back(LOW_RANGES[i]);
  }
  reserved.push_back({window - DEVICE_WINDOW_BYTES, window});
  while (begin < end) {
    uint64_t next = end;
    bool inside = false;
    for (const AddressRange& range : reserved) {
      if (begin >= range.begin && begin < range.end) {
        next = std::min(end, range.end);
        inside = true;
        break;
      }
      if (begin < range.begin) next = std::min(next, range.begin);
    }
    if (!inside && !visit(begin, next)) return false;
    begin = next;
  }
  return true;
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
  const auto inside = [&](const AddressRange& range) {
    return address >= range.begin && address < range.end && len_bytes <= range.end - address;
  };
  for (size_t i = 0; i < std::size(LOW_RANGES); ++i) {
    if (low_reserved[i] && inside(LOW_RANGES[i])) return true;
  }
  if (window != 0 && inside({window - DEVICE_WINDOW_BYTES, window})) return true;
  const std::shared_lock lock(mutex);
  return std::ranges::any_of(kept, inside) || std::ranges::any_of(others, [&](const auto& range) {
           return inside({range.first, range.second});
         });
}

bool keep_for_devices(uint64_t address, uint64_t len_bytes) {
  if (is_reserved_for_devices(address, len_bytes)) return true;
  const std::unique_lock lock(mutex);
  const uint64_t begin = address & ~(KEPT_GRAIN_BYTES - 1);
  const uint64_t end = (address + len_bytes + KEPT_GRAIN_BYTES - 1) & ~(KEPT_GRAIN_BYTES - 1);
  std::vector<AddressRange> made;
  const bool done = each_other_part(begin, end, [&](uint64_t part_begin, uint64_t part_end) {
    if (!reserve(part_begin, part_end)) return false;
    made.push_back({part_begin, part_end});
    return true;
  });
  for (const AddressRange& range : made) {
    if (done) {
      kept.push_back(range);
    } else {
      munmap(reinterpret_cast<void*>(range.begin), range.end - range.begin);
    }
  }
  return done;
}

bool reserve_for_devices(uint64_t address, uint64_t len_bytes) {
  const std::unique_lock lock(mutex);
  std::map<uint64_t, uint64_t> made;
  const bool done =
      each_other_part(address, address + len_bytes, [&](uint64_t begin, uint64_t end) {
        return reserve(begin, end) && made.emplace(begin, end).second;
      });
  if (done) {
    others.merge(made);
  } else {
    for (const auto& [begin, end] : made) munmap(reinterpret_cast<void*>(begin), end - begin);
  }
  return done;
}

void unreserve_for_devices(uint64_t address, uint64_t len_bytes) {
  const std::unique_lock lock(mutex);
  (void)each_other_part(address, address + len_bytes, [](uint64_t begin, uint64_t end) {
    if (others.erase(begin) != 0) munmap(reinterpret_cast<void*>(begin), end - begin);
    return true;
  });
}

bool map_region(int fd, uint64_t region_off, uint64_t len_bytes) {
  return map_region_at(window + region_off, fd, window + region_off, len_bytes);
}

bool map_region_at(uint64_t address, int fd, uint64_t heap, uint64_t len_bytes) {
  return mmap(reinterpret_cast<void*>(address), len_bytes, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(heap - window)) != MAP_FAILED;
}

void hide_region_at(uint64_t address, uint64_t len_bytes) {
  constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(reinterpret_cast<void*>(address), len_bytes, PROT_NONE, FLAGS, -1, 0) == MAP_FAILED)
    log(Level::WARNING, "unmapped host memory at 0x%llx stays visible to this process: %s",
        static_cast<unsigned long long>(address), strerror(errno));
}

}  // namespace kvgpu::guest
