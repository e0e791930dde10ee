// SPDX-License-Identifier: Apache-2.0
#include "types.h"

#include <utility>

namespace software_gpu {
namespace {
constexpr std::pair<std::string_view, Type> TYPE_NAMES[] = {
    {"pred", Type::PRED},     {"b8", Type::B8},   {"b16", Type::B16},     {"b32", Type::B32},
    {"b64", Type::B64},       {"u8", Type::U8},   {"u16", Type::U16},     {"u32", Type::U32},
    {"u64", Type::U64},       {"s8", Type::S8},   {"s16", Type::S16},     {"s32", Type::S32},
    {"s64", Type::S64},       {"f16", Type::F16}, {"f16x2", Type::F16X2}, {"bf16", Type::BF16},
    {"bf16x2", Type::BF16X2}, {"f32", Type::F32}, {"f64", Type::F64}};
}

Type type_from_name(std::string_view name) {
  for (const auto& [text, type] : TYPE_NAMES)
    if (text == name) return type;
  return Type::NONE;
}

std::string_view type_name(Type type) {
  for (const auto& [text, t] : TYPE_NAMES)
    if (t == type) return text;
  return "none";
}

}  // namespace software_gpu
