// SPDX-License-Identifier: Apache-2.0
// Which parts of the slab are in use. The first that are free are taken: what was used last is
// still in the processor's caches, and its pages in the TLB.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvgpu::guest {

template <size_t N>
class Grains {
 public:
  // The first of `n` that adjoin; none: there are no such.
  [[nodiscard]] std::optional<size_t> take(size_t n) {
    for (size_t at = next(0, false, N); n <= N && at <= N - n;) {
      const size_t end = next(at, true, at + n);
      if (end - at == n) {
        set(at, n, true);
        return at;
      }
      at = next(end, false, N);
    }
    return {};
  }
  void give_back(size_t first, size_t n) { set(first, n, false); }

 private:
  static constexpr size_t BITS = 64;
  static_assert(N % BITS == 0);

  // The first from `at` on, before `limit`, that is (not) in use; none: `limit`.
  [[nodiscard]] size_t next(size_t at, bool is_used, size_t limit) const {
    for (size_t word = at / BITS; word * BITS < limit; ++word) {
      uint64_t bits = is_used ? used_[word] : ~used_[word];
      if (word == at / BITS) bits &= ~uint64_t{0} << at % BITS;
      const size_t found = word * BITS + static_cast<size_t>(std::countr_zero(bits));
      if (bits != 0) return std::min(found, limit);
    }
    return limit;
  }
  void set(size_t first, size_t n, bool is_used) {
    for (const size_t end = first + n; first < end;) {
      const size_t in_word = std::min(end - first, BITS - first % BITS);
      const uint64_t bits = (~uint64_t{0} >> (BITS - in_word)) << first % BITS;
      uint64_t& word = used_[first / BITS];
      word = is_used ? word | bits : word & ~bits;
      first += in_word;
    }
  }

  std::array<uint64_t, N / BITS> used_{};
};

}  // namespace kvgpu::guest
