// SPDX-License-Identifier: Apache-2.0
#include "memory_type.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>

#include "kvgpu/barrier.h"

namespace kvgpu::memory {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t N_WORDS = MEASURED_BYTES / sizeof(uint64_t);
// The best pass counts: others may have been interrupted, on a busy machine the first ones, too.
constexpr int PASSES = 8, LEAST_PASSES = 4;
constexpr std::chrono::microseconds LIMIT{500};
// An uncached 8-byte read of memory takes 100 ns or more, that is 80 MB/s or less; a cached one, in
// an emulated processor too, some nanoseconds at most.
constexpr double CACHED_MB_PER_S = 400;
// An uncached 8-byte write waits for the bus; combined ones leave as whole lines.
constexpr double COMBINED_MB_PER_S = 400;

template <typename Pass>
double best_mb_per_s(Pass pass) {
  double best = 0;
  const auto begun = Clock::now();
  for (int i = 0; i < PASSES; ++i) {
    const auto start = Clock::now();
    pass();
    const std::chrono::duration<double, std::micro> took_us = Clock::now() - start;
    best = std::max(best, MEASURED_BYTES / std::max(took_us.count(), 0.01));
    if (i + 1 >= LEAST_PASSES && Clock::now() - begun > LIMIT) break;
  }
  return best;  // bytes per microsecond
}

}  // namespace

std::string_view to_string(Type type) {
  switch (type) {
    case Type::WRITE_BACK:
      return "write-back";
    case Type::WRITE_COMBINING:
      return "write-combining";
    case Type::UNCACHED:
      return "uncached";
  }
  return "?";
}

std::optional<Type> parse(std::string_view text) {
  if (text == "wb") return Type::WRITE_BACK;
  if (text == "wc") return Type::WRITE_COMBINING;
  if (text == "uc") return Type::UNCACHED;
  return std::nullopt;
}

double measure_reads(const std::byte* at) {
  const auto* const words = reinterpret_cast<const uint64_t*>(at);
  (void)load_relaxed(words[0]);  // the page fault
  return best_mb_per_s([words] {
    for (size_t i = 0; i < N_WORDS; ++i) (void)load_relaxed(words[i]);
  });
}

bool is_cached(double read_mb_per_s) { return read_mb_per_s >= CACHED_MB_PER_S; }

Type classify(double read_mb_per_s, double write_mb_per_s) {
  if (is_cached(read_mb_per_s)) return Type::WRITE_BACK;
  return write_mb_per_s >= COMBINED_MB_PER_S ? Type::WRITE_COMBINING : Type::UNCACHED;
}

Measured measure(std::byte* page) {
  Measured measured{Type::WRITE_BACK, measure_reads(page), 0};
  if (is_cached(measured.read_mb_per_s)) return measured;
  auto* const words = reinterpret_cast<uint64_t*>(page);
  measured.write_mb_per_s = best_mb_per_s([words] {
    for (size_t i = 0; i < N_WORDS; ++i) store_relaxed(words[i], 0);
    _mm_sfence();
  });
  measured.type = classify(measured.read_mb_per_s, measured.write_mb_per_s);
  return measured;
}

}  // namespace kvgpu::memory
