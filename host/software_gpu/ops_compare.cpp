// SPDX-License-Identifier: Apache-2.0
// Comparison and selection: setp set selp slct.
#include "decoder.h"
#include "half.h"
#include "map.h"

namespace software_gpu {
namespace {

enum Compare { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NOT_NUM };
enum Combine : uint8_t { NONE, AND, OR, XOR };

template <int C, class T>
bool holds(T a, T b) {
  if constexpr (C == EQ) return a == b;
  if constexpr (C == NE) return std::is_integral_v<T> ? a != b : a < b || a > b;
  if constexpr (C == LT) return a < b;
  if constexpr (C == LE) return a <= b;
  if constexpr (C == GT) return a > b;
  if constexpr (C == GE) return a >= b;
  // The rest is for floating types: true as well when a number is missing.
  if constexpr (C == EQU) return !(a < b || a > b);
  if constexpr (C == NEU) return !(a == b);
  if constexpr (C == LTU) return !(a >= b);
  if constexpr (C == LEU) return !(a > b);
  if constexpr (C == GTU) return !(a <= b);
  if constexpr (C == GEU) return !(a < b);
  if constexpr (C == NUM) return a == a && b == b;
  if constexpr (C == NOT_NUM) return a != a || b != b;
}

template <class T>
T load(uint64_t slot, bool flush) {
  const T value = from_slot<T>(slot);
  if constexpr (std::is_same_v<T, float>)
    if (flush && std::fpclassify(value) == FP_SUBNORMAL) return std::copysign(0.0f, value);
  if constexpr (std::is_same_v<T, Half>)
    if (flush && std::fabs(float{value}) < Half::SMALLEST_NORMAL) return T{0};
  return value;
}

bool combine(uint8_t mode, bool value, bool other) {
  return mode == AND   ? value && other
         : mode == OR  ? value || other
         : mode == XOR ? value != other
                       : value;
}

template <int C, class T>
void compare(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t *a = block.row(in.a), *b = block.row(in.b);
  if (in.dst2 == NO_ROW && in.mode == NONE && !in.flush) {
    if constexpr (std::is_same_v<T, Half>)
      for_each(lanes,
               [=](uint32_t i) { d[i] = holds<C, float>(from_slot<T>(a[i]), from_slot<T>(b[i])); });
    else
      for_each(lanes,
               [=](uint32_t i) { d[i] = holds<C, T>(from_slot<T>(a[i]), from_slot<T>(b[i])); });
    return;
  }
  uint64_t* d2 = in.dst2 == NO_ROW ? nullptr : block.row(in.dst2);
  const uint64_t* c = in.c == NO_ROW ? nullptr : block.row(in.c);
  for_each(lanes, [&](uint32_t i) {
    bool result;
    using Number = std::conditional_t<std::is_integral_v<T> || sizeof(T) == 8, T, float>;
    result = holds<C, Number>(load<T>(a[i], in.flush), load<T>(b[i], in.flush));
    const bool other = c && ((c[i] & 1) != 0) != in.operand_negated;
    d[i] = combine(in.mode, result, other);
    if (d2) d2[i] = combine(in.mode, !result, other);
  });
}

/// f16x2: two results in two predicates, or in the halves of a register, which hold
/// `imm` where the comparison is true.
template <int C>
void compare_pair(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  uint64_t* d2 = in.dst2 == NO_ROW ? nullptr : block.row(in.dst2);
  const uint64_t *a = block.row(in.a), *b = block.row(in.b);
  const uint64_t* c = in.c == NO_ROW ? nullptr : block.row(in.c);
  for_each(lanes, [&](uint32_t i) {
    const bool other = c && ((c[i] & 1) != 0) != in.operand_negated;
    const auto result = [&](int shift) {
      return combine(
          in.mode,
          holds<C, float>(load<Half>(a[i] >> shift, in.flush), load<Half>(b[i] >> shift, in.flush)),
          other);
    };
    const uint64_t low = result(0), high = result(16);
    d[i] = d2 ? low : (low | high << 16) * static_cast<uint64_t>(in.imm);
    if (d2) d2[i] = high;
  });
}

template <class T>
Handler pick_integer(int c) {
  constexpr Handler TABLE[] = {compare<EQ, T>, compare<NE, T>, compare<LT, T>,
                               compare<LE, T>, compare<GT, T>, compare<GE, T>};
  return c <= GE ? TABLE[c] : nullptr;
}

template <class T>
Handler pick_float(int c) {
  constexpr Handler TABLE[] = {
      compare<EQ, T>,  compare<NE, T>,  compare<LT, T>,  compare<LE, T>,     compare<GT, T>,
      compare<GE, T>,  compare<EQU, T>, compare<NEU, T>, compare<LTU, T>,    compare<LEU, T>,
      compare<GTU, T>, compare<GEU, T>, compare<NUM, T>, compare<NOT_NUM, T>};
  return TABLE[c];
}

Handler pick_pair(int c) {
  constexpr Handler TABLE[] = {compare_pair<EQ>,  compare_pair<NE>,     compare_pair<LT>,
                               compare_pair<LE>,  compare_pair<GT>,     compare_pair<GE>,
                               compare_pair<EQU>, compare_pair<NEU>,    compare_pair<LTU>,
                               compare_pair<LEU>, compare_pair<GTU>,    compare_pair<GEU>,
                               compare_pair<NUM>, compare_pair<NOT_NUM>};
  return TABLE[c];
}

Handler pick(int c, Type type) {
  switch (type) {
    case Type::U16:
    case Type::B16:
      return pick_integer<uint16_t>(c);
    case Type::U32:
    case Type::B32:
      return pick_integer<uint32_t>(c);
    case Type::U64:
    case Type::B64:
      return pick_integer<uint64_t>(c);
    case Type::S16:
      return pick_integer<int16_t>(c);
    case Type::S32:
      return pick_integer<int32_t>(c);
    case Type::S64:
      return pick_integer<int64_t>(c);
    case Type::F16:
      return pick_float<Half>(c);
    case Type::F16X2:
      return pick_pair(c);
    case Type::F32:
      return pick_float<float>(c);
    case Type::F64:
      return pick_float<double>(c);
    default:
      return nullptr;
  }
}

int take_comparison(Decoding& d) {
  const int same_unsigned = d.modifiers.take_one({"lo", "ls", "hi", "hs"});
  if (same_unsigned >= 0) return LT + same_unsigned;
  const int c = d.modifiers.take_one(
      {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"});
  if (c < 0) d.fail("no comparison");
  return c;
}

/// Comparison, combination and sources from operand 1 on.
void decode_comparison(Decoding& d, Type type, int c, int combination) {
  d.out.a = d.value(1, type);
  d.out.b = d.value(2, type);
  d.out.mode = static_cast<uint8_t>(combination + 1);
  if (combination >= 0) {
    ptx::Operand other = d.operand(3);
    d.out.operand_negated = other.negated;
    other.negated = false;
    d.out.c = d.decoder.value(other, Type::PRED);
  }
  d.out.handler = pick(c, type);
  if (!d.out.handler) d.fail("this comparison is not supported on this type");
}

void decode_setp(Decoding& d) {
  const int c = take_comparison(d);
  const int combination = d.modifiers.take_one({"and", "or", "xor"});
  d.out.flush = d.modifiers.take("ftz");
  const Type type = d.modifiers.take_type();
  d.set_dst();
  if (!d.operand(0).second_name.empty()) {
    if (type == Type::F16) d.fail("one predicate only is allowed for the result");
    ptx::Operand second;
    second.name = d.operand(0).second_name;
    d.out.dst2 = d.decoder.destination(second);
  } else if (type == Type::F16X2) {
    d.fail("two predicates are needed for the results: p|q");
  }
  decode_comparison(d, type, c, combination);
}

template <class T>
struct Select {
  static T apply(T a, T b, bool c) { return c ? a : b; }
};

/// What `set` writes where the comparison is true; 0 for a type that it does not write.
uint32_t true_value(Type type) {
  switch (type) {
    case Type::F16:
    case Type::F16X2:
      return 0x3c00;
    case Type::F32:
      return 0x3f800000;
    case Type::U16:
    case Type::S16:
      return 0xffff;
    case Type::U32:
    case Type::S32:
      return 0xffffffff;
    default:
      return 0;
  }
}

void decode_set(Decoding& d) {
  const int c = take_comparison(d);
  const int combination = d.modifiers.take_one({"and", "or", "xor"});
  d.out.flush = d.modifiers.take("ftz");
  const Type result = d.modifiers.take_type(), type = d.modifiers.take_type();
  if (true_value(result) == 0) d.fail("this type is not supported");
  decode_comparison(d, type, c, combination);
  if (type == Type::F16X2) {
    d.out.imm = true_value(result) & 0xffff;
    return d.set_dst();
  }
  d.out.dst = d.decoder.scratch();
  const Row condition = d.out.dst;
  d.decoder.emit(d.out);
  d.set_dst();
  d.out.a = d.decoder.constant(true_value(result));
  d.out.b = d.decoder.constant(0);
  d.out.c = condition;
  d.out.handler = Map<Select<uint32_t>::apply>::run;
}

void decode_selp(Decoding& d) {
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  d.out.b = d.value(2, type);
  d.out.c = d.value(3, Type::PRED);
  d.out.handler = size_bytes(type) == 8   ? Map<Select<uint64_t>::apply>::run
                  : size_bytes(type) == 4 ? Map<Select<uint32_t>::apply>::run
                                          : Map<Select<uint16_t>::apply>::run;
}

uint64_t select_by_sign(uint64_t a, uint64_t b, int32_t c) { return c >= 0 ? a : b; }
uint64_t select_by_float(uint64_t a, uint64_t b, float c) { return c >= 0 ? a : b; }
uint64_t select_by_flushed(uint64_t a, uint64_t b, float c) {
  return c > -std::numeric_limits<float>::min() ? a : b;
}

void decode_slct(Decoding& d) {
  const bool flush = d.modifiers.take("ftz");
  const Type type = d.modifiers.take_type(), condition = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  d.out.b = d.value(2, type);
  d.out.c = d.value(3, condition);
  d.out.handler = condition != Type::F32 ? Map<select_by_sign>::run
                  : flush                ? Map<select_by_flushed>::run
                                         : Map<select_by_float>::run;
}

}  // namespace

void add_compare_operations(OperationTable* table) {
  (*table)["setp"] = decode_setp;
  (*table)["set"] = decode_set;
  (*table)["selp"] = decode_selp;
  (*table)["slct"] = decode_slct;
}

}  // namespace software_gpu
