// SPDX-License-Identifier: Apache-2.0
// The scalar types of PTX.
#pragma once

#include <cstdint>
#include <string_view>

namespace software_gpu {

enum class Type : uint8_t {
  NONE,
  PRED,
  B8,
  B16,
  B32,
  B64,
  U8,
  U16,
  U32,
  U64,
  S8,
  S16,
  S32,
  S64,
  F16,
  F16X2,
  BF16,
  BF16X2,
  F32,
  F64
};

constexpr uint32_t size_bytes(Type type) {
  switch (type) {
    case Type::PRED:
    case Type::B8:
    case Type::U8:
    case Type::S8:
      return 1;
    case Type::B16:
    case Type::U16:
    case Type::S16:
    case Type::F16:
    case Type::BF16:
      return 2;
    case Type::B64:
    case Type::U64:
    case Type::S64:
    case Type::F64:
      return 8;
    case Type::NONE:
      return 0;
    default:
      return 4;
  }
}

constexpr bool is_signed(Type type) { return type >= Type::S8 && type <= Type::S64; }
constexpr bool is_float(Type type) { return type >= Type::F16; }

/// Where the source of an instruction stands (.loc); file 0: unknown.
struct SourcePlace {
  uint32_t file = 0, line = 0;
};

/// The type that a suffix such as "u32" (without its dot) names; NONE when it names none.
Type type_from_name(std::string_view name);
std::string_view type_name(Type type);

}  // namespace software_gpu
