// SPDX-License-Identifier: Apache-2.0
// What measured figures mean, and that streaming copies copy: every alignment, nothing beside.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "memory_type.h"
#include "streaming.h"

using namespace kvgpu::memory;

namespace {

struct alignas(4096) Page {
  std::byte bytes[MEASURED_BYTES];
};

}  // namespace

TEST_CASE("this machine's own memory is write-back") {
  Page page{};
  const Measured measured = measure(page.bytes);
  CHECK(measured.type == Type::WRITE_BACK);
  CHECK(is_cached(measured.read_mb_per_s));
}

TEST_CASE("slow reads are not cached; fast writes among them are combined") {
  CHECK(classify(8000, 0) == Type::WRITE_BACK);
  CHECK(classify(60, 5000) == Type::WRITE_COMBINING);
  CHECK(classify(60, 80) == Type::UNCACHED);
  CHECK(parse("wc") == Type::WRITE_COMBINING);
  CHECK_FALSE(parse("WB").has_value());
}

TEST_CASE("streaming copies of every alignment and length are exact") {
  constexpr size_t SIZE = 512, GUARD = 64;
  std::vector<std::byte> from(SIZE), to(SIZE);
  for (size_t i = 0; i < SIZE; ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const auto copy : {stream_in, stream_out}) {
    for (size_t from_at = 0; from_at < 17; ++from_at) {
      for (size_t to_at = 0; to_at < 17; ++to_at) {
        for (const size_t bytes :
             {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{33}, size_t{64}, size_t{200}}) {
          std::fill(to.begin(), to.end(), std::byte{0xee});
          copy(to.data() + GUARD + to_at, from.data() + from_at, bytes);
          std::vector<std::byte> expected(SIZE, std::byte{0xee});
          std::copy_n(from.begin() + static_cast<ptrdiff_t>(from_at), bytes,
                      expected.begin() + static_cast<ptrdiff_t>(GUARD + to_at));
          REQUIRE(to == expected);
        }
      }
    }
  }
}
