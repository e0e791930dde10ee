// SPDX-License-Identifier: Apache-2.0
// How the processor caches a mapping of the region. /proc/iomem and the page tables do not say it:
// under KVM the host may override what the guest asked for. So it is measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvgpu::memory {

enum class Type { WRITE_BACK, WRITE_COMBINING, UNCACHED };

std::string_view to_string(Type type);
std::optional<Type> parse(std::string_view text);  // "wb", "wc", "uc"

struct Measured {
  Type type;
  double read_mb_per_s;   // 8 bytes at a time
  double write_mb_per_s;  // 0: not measured, since reads told enough
};

inline constexpr size_t MEASURED_BYTES = 4096;

// Reads MEASURED_BYTES at `at` some times: cached or not? Takes some microseconds, at most about a
// millisecond.
double measure_reads(const std::byte* at);
bool is_cached(double read_mb_per_s);

// Of a page of MEASURED_BYTES that nobody else uses; it is zero afterwards.
Measured measure(std::byte* page);

Type classify(double read_mb_per_s, double write_mb_per_s);

}  // namespace kvgpu::memory
