// SPDX-License-Identifier: Apache-2.0
// The slab's parts, beside a list of which are in use.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "grains.h"

using kvgpu::guest::Grains;

namespace {

constexpr size_t N = 256;

std::optional<size_t> first_fit(const std::vector<bool>& used, size_t n) {
  for (size_t at = 0; at + n <= used.size(); ++at) {
    size_t free = 0;
    while (free < n && !used[at + free]) ++free;
    if (free == n) return at;
  }
  return {};
}

}  // namespace

TEST_CASE("the first that fit are taken, until there are none") {
  Grains<N> grains;
  CHECK(grains.take(N + 1) == std::nullopt);
  CHECK(grains.take(1) == 0);
  CHECK(grains.take(100) == 1);
  CHECK(grains.take(N - 101) == 101);
  CHECK(grains.take(1) == std::nullopt);
  grains.give_back(1, 100);
  CHECK(grains.take(101) == std::nullopt);
  CHECK(grains.take(100) == 1);
}

TEST_CASE("all are one piece") {
  Grains<N> grains;
  CHECK(grains.take(N) == 0);
  grains.give_back(0, N);
  CHECK(grains.take(N) == 0);
}

TEST_CASE("as a search among all of them gives") {
  std::mt19937 random(7);
  Grains<N> grains;
  std::vector<bool> used(N);
  std::vector<std::pair<size_t, size_t>> pieces;
  int n_full = 0;
  for (int i = 0; i < 20'000; ++i) {
    const size_t n = 1 + random() % (random() % 8 == 0 ? 90 : 4);
    const std::optional<size_t> expected = first_fit(used, n);
    REQUIRE(grains.take(n) == expected);
    n_full += !expected;
    if (expected) {
      for (size_t k = 0; k < n; ++k) used[*expected + k] = true;
      pieces.emplace_back(*expected, n);
    }
    while (!pieces.empty() && random() % 8 >= (expected ? 4u : 2u)) {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      const auto [first, length] = pieces.back();
      pieces.pop_back();
      grains.give_back(first, length);
      for (size_t k = 0; k < length; ++k) used[first + k] = false;
    }
  }
  CHECK(n_full > 100);
}
