// SPDX-License-Identifier: Apache-2.0
// Bits: and or xor not cnot shl shr shf lop3 popc clz bfind brev bfe bfi bmsk szext fns prmt.
#include <algorithm>

#include "decoder.h"
#include "map.h"

namespace software_gpu {
namespace {

template <class T>
struct And {
  static T apply(T a, T b) { return static_cast<T>(a & b); }
};
template <class T>
struct Or {
  static T apply(T a, T b) { return static_cast<T>(a | b); }
};
template <class T>
struct Xor {
  static T apply(T a, T b) { return static_cast<T>(a ^ b); }
};
template <class T>
struct Not {
  static T apply(T a) { return static_cast<T>(~a); }
};
template <class T>
struct CNot {
  static T apply(T a) { return a == 0; }
};
// Shift amounts are clamped to the width.
template <class T>
struct Shl {
  static T apply(T a, uint32_t n) {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(uint64_t(a) << n);
  }
};
template <class T>
struct Shr {
  static T apply(T a, uint32_t n) {
    if constexpr (std::is_signed_v<T>)
      return static_cast<T>(a >> std::min<uint32_t>(n, 8 * sizeof(T) - 1));
    else
      return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(a >> n);
  }
};
template <class T>
struct Popc {
  static uint32_t apply(T a) {
    return static_cast<uint32_t>(std::popcount(std::make_unsigned_t<T>(a)));
  }
};
template <class T>
struct Clz {
  static uint32_t apply(T a) {
    return static_cast<uint32_t>(std::countl_zero(std::make_unsigned_t<T>(a)));
  }
};
template <class T>
struct Brev {
  static T apply(T a) {
    T result = 0;
    for (size_t i = 0; i < 8 * sizeof(T); ++i)
      result = static_cast<T>(result | ((a >> i & 1) << (8 * sizeof(T) - 1 - i)));
    return result;
  }
};
template <class T>
struct Bfind {
  static uint32_t apply(T a) {
    using U = std::make_unsigned_t<T>;
    const U bits = std::is_signed_v<T> && a < 0 ? static_cast<U>(~a) : static_cast<U>(a);
    return bits == 0 ? UINT32_MAX
                     : static_cast<uint32_t>(8 * sizeof(T) - 1 -
                                             static_cast<size_t>(std::countl_zero(bits)));
  }
};
template <class T>
struct BfindShift {
  static uint32_t apply(T a) {
    const uint32_t at = Bfind<T>::apply(a);
    return at == UINT32_MAX ? at : static_cast<uint32_t>(8 * sizeof(T) - 1 - at);
  }
};
/// A field's position or length. PTX says that the low byte counts; NVIDIA's GPUs take the whole
/// number for fields of 64-bit values.
template <class T>
uint32_t field_part(uint32_t value) {
  return sizeof(T) == 8 ? std::min(value, 64u) : value & 0xff;
}
template <class T>
struct Bfe {
  static T apply(T a, uint32_t b, uint32_t c) {
    const uint32_t position = field_part<T>(b), length = field_part<T>(c);
    const uint32_t msb = 8 * sizeof(T) - 1;
    T result = 0;
    const bool fill =
        std::is_signed_v<T> && length != 0 && (a >> std::min(position + length - 1, msb) & 1);
    for (uint32_t i = 0; i <= msb; ++i) {
      const bool bit = i < length && position + i <= msb ? (a >> (position + i) & 1) != 0 : fill;
      result = static_cast<T>(result | static_cast<T>(uint64_t{bit} << i));
    }
    return result;
  }
};
template <class T>
struct Bfi {
  static T apply(T a, T b, uint32_t c, uint32_t d) {
    const uint32_t position = field_part<T>(c), length = field_part<T>(d);
    T result = b;
    for (uint32_t i = 0; i < length && position + i < 8 * sizeof(T); ++i) {
      const T mask = static_cast<T>(T{1} << (position + i));
      result = static_cast<T>((result & ~mask) | ((a >> i & 1) ? mask : 0));
    }
    return result;
  }
};
bool pred_and(bool a, bool b) { return a && b; }
bool pred_or(bool a, bool b) { return a || b; }
bool pred_xor(bool a, bool b) { return a != b; }
bool pred_not(bool a) { return !a; }

uint64_t funnel(uint32_t a, uint32_t b) { return uint64_t{b} << 32 | a; }
uint32_t shf_left_wrap(uint32_t a, uint32_t b, uint32_t c) {
  return static_cast<uint32_t>(funnel(a, b) << (c & 31) >> 32);
}
uint32_t shf_right_wrap(uint32_t a, uint32_t b, uint32_t c) {
  return static_cast<uint32_t>(funnel(a, b) >> (c & 31));
}
uint32_t shf_left_clamp(uint32_t a, uint32_t b, uint32_t c) {
  return static_cast<uint32_t>(funnel(a, b) << std::min(c, 32u) >> 32);
}
uint32_t shf_right_clamp(uint32_t a, uint32_t b, uint32_t c) {
  return static_cast<uint32_t>(funnel(a, b) >> std::min(c, 32u));
}

uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = funnel(a, b);
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t pick = selector >> (4 * i) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (pick & 7))) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}

// The selectors of prmt's modes, for the values 0 to 3 of the third operand's low bits.
constexpr uint32_t PERMUTATIONS[][4] = {{0x3210, 0x4321, 0x5432, 0x6543},   // f4e
                                        {0x5670, 0x6701, 0x7012, 0x0123},   // b4e
                                        {0x0000, 0x1111, 0x2222, 0x3333},   // rc8
                                        {0x3210, 0x3211, 0x3222, 0x3333},   // ecl
                                        {0x0000, 0x1110, 0x2210, 0x3210},   // ecr
                                        {0x1010, 0x3232, 0x1010, 0x3232}};  // rc16
template <int MODE>
uint32_t permute_by_mode(uint32_t a, uint32_t b, uint32_t c) {
  return permute(a, b, PERMUTATIONS[MODE][c & 3]);
}

uint32_t mask_wrapped(uint32_t position, uint32_t width) {
  return static_cast<uint32_t>(((uint64_t{1} << (width & 31)) - 1) << (position & 31));
}
uint32_t mask_clamped(uint32_t position, uint32_t width) {
  if (position > 31) return 0;
  return static_cast<uint32_t>(((uint64_t{1} << std::min(width, 32u)) - 1) << position);
}

/// The low `width` bits of the value, extended by their sign or by zeros.
template <class T, bool WRAP>
T extend(T value, uint32_t width) {
  const uint32_t n = WRAP ? width & 31 : width;
  if (n == 0) return 0;
  if (n >= 32) return value;
  return static_cast<T>(static_cast<uint32_t>(value) << (32 - n)) >> (32 - n);
}

/// Position of the |n|-th set bit of the mask at or above (n > 0), or below (n < 0) the base.
uint32_t find_nth_set(uint32_t mask, uint32_t base, int32_t n) {
  if (n == INT32_MIN) return 0;  // as NVIDIA's GPUs do
  if (n == 0) return base < 32 && (mask >> base & 1) ? base : UINT32_MAX;
  const int64_t step = n > 0 ? 1 : -1;
  uint64_t left = static_cast<uint64_t>(n > 0 ? int64_t{n} : -int64_t{n});
  for (int64_t at = base; at >= 0 && at < 32; at += step)
    if ((mask >> at & 1) && --left == 0) return static_cast<uint32_t>(at);
  return UINT32_MAX;
}

void lop3(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t *a = block.row(in.a), *b = block.row(in.b), *c = block.row(in.c);
  const uint8_t table = in.mode;
  for_each(lanes, [=](uint32_t i) {
    uint64_t result = 0;
    for (uint32_t k = 0; k < 8; ++k) {
      if (!(table >> k & 1)) continue;
      result |= (k & 4 ? a[i] : ~a[i]) & (k & 2 ? b[i] : ~b[i]) & (k & 1 ? c[i] : ~c[i]);
    }
    d[i] = result;
  });
}

template <template <class> class Op, auto PREDICATE>
void decode_logic(Decoding& d) {
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  if (d.n_operands() > 2) d.out.b = d.value(2, type);
  d.out.handler = type == Type::PRED ? Map<PREDICATE>::run : for_bits<Op>(type);
}

template <template <class> class Op>
void decode_unary(Decoding& d) {
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  d.out.handler = for_integer<Op>(type);
}

template <template <class> class Op>
void decode_shift(Decoding& d) {
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  d.out.b = d.value(2, Type::U32);
  d.out.handler = for_integer<Op>(type);
}

/// An operation on 32-bit values only, with as many operands as the source has.
void decode_words(Decoding& d, Handler handler) {
  d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, Type::B32);
  d.out.b = d.value(2, Type::B32);
  if (d.n_operands() > 3) d.out.c = d.value(3, Type::B32);
  d.out.handler = handler;
}

void decode_mask(Decoding& d) {
  const bool wrap = d.modifiers.take_one({"clamp", "wrap"}) == 1;
  decode_words(d, wrap ? Map<mask_wrapped>::run : Map<mask_clamped>::run);
}

void decode_extend(Decoding& d) {
  constexpr Handler HANDLERS[2][2] = {
      {Map<extend<uint32_t, false>>::run, Map<extend<uint32_t, true>>::run},
      {Map<extend<int32_t, false>>::run, Map<extend<int32_t, true>>::run}};
  const bool wrap = d.modifiers.take_one({"clamp", "wrap"}) == 1;
  decode_words(d, HANDLERS[d.source.opcode.back() == "s32"][wrap]);
}

void decode_funnel(Decoding& d) {
  const bool left = d.modifiers.take_one({"l", "r"}) == 0;
  const bool wrap = d.modifiers.take_one({"wrap", "clamp"}) == 0;
  decode_words(d, left ? (wrap ? Map<shf_left_wrap>::run : Map<shf_left_clamp>::run)
                       : (wrap ? Map<shf_right_wrap>::run : Map<shf_right_clamp>::run));
}

void decode_field(Decoding& d) {
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  if (d.source.opcode.front() == "bfe") {
    d.out.b = d.value(2, Type::U32);
    d.out.c = d.value(3, Type::U32);
    d.out.handler = for_integer<Bfe>(type);
  } else {
    d.out.b = d.value(2, type);
    d.out.c = d.value(3, Type::U32);
    d.out.d = d.value(4, Type::U32);
    d.out.handler = for_bits<Bfi>(type);
  }
}

void decode_bfind(Decoding& d) {
  const bool shift = d.modifiers.take("shiftamt");
  if (shift) {
    decode_unary<BfindShift>(d);
  } else {
    decode_unary<Bfind>(d);
  }
}

void decode_lop3(Decoding& d) {
  const Type type = d.modifiers.take_type();
  if (type != Type::B32 || d.operand(4).kind != ptx::Operand::Kind::INTEGER)
    d.fail("not supported");
  d.set_dst();
  d.out.a = d.value(1, type);
  d.out.b = d.value(2, type);
  d.out.c = d.value(3, type);
  d.out.mode = static_cast<uint8_t>(d.operand(4).value);
  d.out.handler = lop3;
}

void decode_permute(Decoding& d) {
  constexpr Handler BY_MODE[] = {Map<permute_by_mode<0>>::run, Map<permute_by_mode<1>>::run,
                                 Map<permute_by_mode<2>>::run, Map<permute_by_mode<3>>::run,
                                 Map<permute_by_mode<4>>::run, Map<permute_by_mode<5>>::run};
  const int mode = d.modifiers.take_one({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  decode_words(d, mode < 0 ? Map<permute>::run : BY_MODE[mode]);
}

}  // namespace

void add_bit_operations(OperationTable* table) {
  OperationTable& t = *table;
  t["and"] = decode_logic<And, pred_and>;
  t["or"] = decode_logic<Or, pred_or>;
  t["xor"] = decode_logic<Xor, pred_xor>;
  t["not"] = decode_logic<Not, pred_not>;
  t["cnot"] = decode_unary<CNot>;
  t["shl"] = decode_shift<Shl>;
  t["shr"] = decode_shift<Shr>;
  t["shf"] = decode_funnel;
  t["popc"] = decode_unary<Popc>;
  t["clz"] = decode_unary<Clz>;
  t["brev"] = decode_unary<Brev>;
  t["bfind"] = decode_bfind;
  t["bfe"] = t["bfi"] = decode_field;
  t["lop3"] = decode_lop3;
  t["bmsk"] = decode_mask;
  t["szext"] = decode_extend;
  t["fns"] = [](Decoding& d) { decode_words(d, Map<find_nth_set>::run); };
  t["prmt"] = decode_permute;
}

}  // namespace software_gpu
