// SPDX-License-Identifier: Apache-2.0
// The 16-bit floating types, kept as bits; arithmetic goes through double and rounds once.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace software_gpu {

/// How PTX names them: nearest even, towards zero, down, up.
enum Rounding : uint8_t { RN, RZ, RM, RP };

/// Round to a format with `mantissa` fraction bits and exponent bias `bias`.
template <int MANTISSA, int BIAS>
inline uint16_t round_to_16(double value, int rounding) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  constexpr int EXPONENT_MAX = 2 * BIAS + 1;
  const uint16_t infinity = static_cast<uint16_t>(EXPONENT_MAX << MANTISSA);
  if (std::isnan(value)) return 0x7fff;
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0) return sign;
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent, f in [0.5, 1)
  const int unit = (exponent - 1 < 1 - BIAS ? 1 - BIAS : exponent - 1) - MANTISSA;
  const double scaled = std::ldexp(magnitude, -unit);
  double whole = std::floor(scaled);
  const double rest = scaled - whole;
  const bool away = rounding == (sign ? RM : RP);
  if (rounding == RN ? rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) != 0) : away && rest > 0)
    whole += 1;
  // `whole` counts units; adding the exponent field makes a carry move into it by itself.
  const int field = unit + MANTISSA + BIAS;  // biased exponent of a normal number
  const uint32_t result =
      static_cast<uint32_t>(whole) + (static_cast<uint32_t>(field - 1) << MANTISSA);
  if (result < infinity) return sign | static_cast<uint16_t>(result);
  return sign | (rounding == RN || away ? infinity : static_cast<uint16_t>(infinity - 1));
}

template <int MANTISSA, int BIAS>
inline float widen_16(uint16_t bits) {
  const int exponent = bits >> MANTISSA & (2 * BIAS + 1);
  const int fraction = bits & ((1 << MANTISSA) - 1);
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 2 * BIAS + 1) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - BIAS - MANTISSA);
  return sign *
         std::ldexp(static_cast<float>(fraction | 1 << MANTISSA), exponent - BIAS - MANTISSA);
}

struct Half {
  static constexpr double SMALLEST_NORMAL = 0x1p-14;
  uint16_t bits;
  static Half from(double value, int rounding = RN) {
    return {round_to_16<10, 15>(value, rounding)};
  }
  operator float() const { return widen_16<10, 15>(bits); }
};

struct Bfloat {
  static constexpr double SMALLEST_NORMAL = 0x1p-126;
  uint16_t bits;
  static Bfloat from(double value, int rounding = RN) {
    return {round_to_16<7, 127>(value, rounding)};
  }
  operator float() const { return widen_16<7, 127>(bits); }
};

/// The NaN that PTX's operations on .f32 make; other values stay what they are.
template <class T>
inline T canonical(T value) {
  if constexpr (sizeof(T) == 4)
    return value == value ? value : std::bit_cast<T>(0x7fffffffu);
  else
    return value;
}

}  // namespace software_gpu
