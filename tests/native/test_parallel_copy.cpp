// SPDX-License-Identifier: Apache-2.0
// Copies that several processors share: every length is exact, nothing beside; many callers at
// once.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "parallel_copy.h"

using kvgpu::memory::CopyCrew;

namespace {

constexpr size_t PART = CopyCrew::PART_BYTES;

std::atomic<int> n_parts{0};
void counted(void* to, const void* from, size_t bytes) {
  ++n_parts;
  std::memcpy(to, from, bytes);
}

// Its threads outlive the test.
CopyCrew& crew_of(unsigned n_helpers) {
  static CopyCrew* const crews[] = {new CopyCrew(0), new CopyCrew(1), new CopyCrew(3)};
  return *crews[n_helpers == 3 ? 2 : n_helpers];
}

std::vector<std::byte> pattern(size_t bytes, size_t seed) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + seed);
  return data;
}

bool copies_exactly(CopyCrew& crew, size_t bytes, size_t seed) {
  constexpr size_t GUARD = 64;
  const std::vector<std::byte> from = pattern(bytes, seed);
  std::vector<std::byte> to(bytes + 2 * GUARD, std::byte{0xee});
  crew.run(counted, to.data() + GUARD, from.data(), bytes);
  const auto is_untouched = [](std::byte each) { return each == std::byte{0xee}; };
  return std::equal(from.begin(), from.end(), to.begin() + GUARD) &&
         std::all_of(to.begin(), to.begin() + GUARD, is_untouched) &&
         std::all_of(to.end() - GUARD, to.end(), is_untouched);
}

}  // namespace

TEST_CASE("a shared copy is exact, whatever its length") {
  for (const unsigned n_helpers : {0, 1, 3}) {
    for (const size_t bytes :
         {size_t{1}, PART, 2 * PART - 1, 2 * PART, 2 * PART + 1, 8 * PART, 9 * PART - 5}) {
      n_parts = 0;
      REQUIRE(copies_exactly(crew_of(n_helpers), bytes, n_helpers));
      const bool is_shared = n_helpers > 0 && bytes >= 2 * PART;
      CHECK(n_parts == (is_shared ? (bytes + PART - 1) / PART : 1));
    }
  }
}

TEST_CASE("callers at once do not mix their copies, and one after a pause finds its helpers") {
  std::vector<std::thread> callers;
  std::atomic<int> n_wrong{0};
  for (size_t caller = 0; caller < 3; ++caller) {
    callers.emplace_back([caller, &n_wrong] {
      for (size_t i = 0; i < 20; ++i) {
        if (!copies_exactly(crew_of(3), (2 + i % 5) * PART + i, caller * 31 + i)) ++n_wrong;
        if (i % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(n_wrong == 0);
}
