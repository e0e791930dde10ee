// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic: add sub mul mad div rem min max neg abs sad, with carries, of 24 bits; dp2a
// dp4a vabsdiff2 vabsdiff4.
#include <cstdlib>

#include "decoder.h"
#include "map.h"

namespace software_gpu {

void decode_float_arithmetic(Decoding& d);  // ops_float.cpp: the same names on floating types

namespace {

template <class T>
using U = std::make_unsigned_t<T>;

// Arithmetic wraps: done on unsigned values, in 64 bits where C++ would promote to int.
template <class T>
struct Add {
  static T apply(T a, T b) { return static_cast<T>(uint64_t(a) + uint64_t(b)); }
};
template <class T>
struct Sub {
  static T apply(T a, T b) { return static_cast<T>(uint64_t(a) - uint64_t(b)); }
};
template <class T>
struct MulLo {
  static T apply(T a, T b) { return static_cast<T>(uint64_t(a) * uint64_t(b)); }
};
template <class T>
struct MadLo {
  static T apply(T a, T b, T c) { return static_cast<T>(uint64_t(a) * uint64_t(b) + uint64_t(c)); }
};

template <class T>
struct WideOf;
template <>
struct WideOf<uint16_t> {
  using type = uint32_t;
};
template <>
struct WideOf<int16_t> {
  using type = int32_t;
};
template <>
struct WideOf<uint32_t> {
  using type = uint64_t;
};
template <>
struct WideOf<int32_t> {
  using type = int64_t;
};
template <>
struct WideOf<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct WideOf<int64_t> {
  using type = __int128;
};
template <class T>
using Wide = typename WideOf<T>::type;

template <class T>
struct MulHi {
  static T apply(T a, T b) { return static_cast<T>((Wide<T>(a) * Wide<T>(b)) >> (8 * sizeof(T))); }
};
template <class T>
struct MadHi {
  static T apply(T a, T b, T c) { return Add<T>::apply(MulHi<T>::apply(a, b), c); }
};
template <class T>
struct MulWide {
  static Wide<T> apply(T a, T b) { return Wide<T>(a) * Wide<T>(b); }
};
template <class T>
struct MadWide {
  static Wide<T> apply(T a, T b, Wide<T> c) {
    return static_cast<Wide<T>>(uint64_t(Wide<T>(a) * Wide<T>(b)) + uint64_t(c));
  }
};
// Division by zero is unspecified in PTX; NVIDIA's GPUs give all ones.
template <class T>
struct Div {
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return Sub<T>::apply(0, a);
    return static_cast<T>(a / b);
  }
};
template <class T>
struct Rem {
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return 0;
    return static_cast<T>(a % b);
  }
};
template <class T>
struct Min {
  static T apply(T a, T b) { return a < b ? a : b; }
};
template <class T>
struct Max {
  static T apply(T a, T b) { return a > b ? a : b; }
};
template <class T>
struct Neg {
  static T apply(T a) { return Sub<T>::apply(0, a); }
};
template <class T>
struct Abs {
  static T apply(T a) { return a < 0 ? Sub<T>::apply(0, a) : a; }
};
template <class T>
struct Sad {
  static T apply(T a, T b, T c) {
    return Add<T>::apply(c, a < b ? Sub<T>::apply(b, a) : Sub<T>::apply(a, b));
  }
};
int32_t add_saturated(int32_t a, int32_t b) {
  const int64_t sum = int64_t{a} + b;
  return static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX));
}
int32_t sub_saturated(int32_t a, int32_t b) {
  const int64_t difference = int64_t{a} - b;
  return static_cast<int32_t>(
      std::min<int64_t>(std::max<int64_t>(difference, INT32_MIN), INT32_MAX));
}
int32_t mad_hi_saturated(int32_t a, int32_t b, int32_t c) {
  return add_saturated(MulHi<int32_t>::apply(a, b), c);
}

/// The product of the operands' low 24 bits: its low 32 bits, or the 32 bits from bit 16 on.
template <class T, bool HIGH>
T mul24(T a, T b) {
  const auto low24 = [](T x) -> int64_t {
    return static_cast<T>(static_cast<uint32_t>(x) << 8) >> 8;
  };
  return static_cast<T>(low24(a) * low24(b) >> (HIGH ? 16 : 0));
}
template <class T, bool HIGH>
T mad24(T a, T b, T c) {
  return Add<T>::apply(mul24<T, HIGH>(a, b), c);
}
int32_t mad24_hi_saturated(int32_t a, int32_t b, int32_t c) {
  return add_saturated(mul24<int32_t, true>(a, b), c);
}

/// Products of N parts of a (of type A) with N bytes of b (of type B) from the FIRST one on, added
/// to c.
template <class A, class B, int N, int FIRST>
uint32_t dot_product(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < N; ++i) {
    const A x = static_cast<A>(a >> (32 / N * i));
    const B y = static_cast<B>(b >> (8 * (FIRST + i)));
    c += static_cast<uint32_t>(x * y);
  }
  return c;
}

template <template <class> class Op>
Handler for_widening(Type type) {
  switch (type) {
    case Type::U16:
      return Map<Op<uint16_t>::apply>::run;
    case Type::U32:
      return Map<Op<uint32_t>::apply>::run;
    case Type::S16:
      return Map<Op<int16_t>::apply>::run;
    case Type::S32:
      return Map<Op<int32_t>::apply>::run;
    default:
      return nullptr;
  }
}

template <template <class> class Op>
Handler for_signed(Type type) {
  return is_signed(type) ? for_integer<Op>(type) : nullptr;
}

/// add.cc, addc, sub.cc, subc, mad.cc, madc: `mode` bit 0 reads the carry, bit 1 writes it. As on
/// NVIDIA's GPUs a subtraction adds the complement, so that no borrow is a carry.
enum CarryKind : uint8_t { READS = 1, WRITES = 2 };

template <class T, bool SUBTRACT>
void add_with_carry(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  uint64_t* carry = block.row(in.c);
  const uint64_t* a = block.row(in.a);
  const uint64_t* b = block.row(in.b);
  const bool reads = in.mode & READS, writes = in.mode & WRITES;
  for_each(lanes, [=](uint32_t i) {
    const T x = static_cast<T>(a[i]), y = static_cast<T>(SUBTRACT ? ~b[i] : b[i]);
    const T extra = reads ? static_cast<T>(carry[i] & 1) : T{SUBTRACT};
    T partial, sum;
    const bool over = __builtin_add_overflow(x, y, &partial);
    const bool over2 = __builtin_add_overflow(partial, extra, &sum);
    d[i] = sum;
    if (writes) carry[i] = over || over2;
  });
}

void decode_carry_add(Decoding& d, bool subtract) {
  const bool writes = d.modifiers.take("cc");
  d.out.mode = static_cast<uint8_t>((d.source.opcode.front().back() == 'c' ? READS : 0) |
                                    (writes ? WRITES : 0));
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  d.out.b = d.value(2, type);
  d.out.c = d.decoder.carry();
  if (size_bytes(type) == 4)
    d.out.handler = subtract ? add_with_carry<uint32_t, true> : add_with_carry<uint32_t, false>;
  if (size_bytes(type) == 8)
    d.out.handler = subtract ? add_with_carry<uint64_t, true> : add_with_carry<uint64_t, false>;
}

bool has_float_type(const Decoding& d) {
  for (const std::string_view part : d.source.opcode)
    if (is_float(type_from_name(part))) return true;
  return false;
}

/// `name type d, a, b, c` with as many operands as the source has.
Type take_operands(Decoding& d) {
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  if (d.n_operands() > 2) d.out.b = d.value(2, type);
  if (d.n_operands() > 3) d.out.c = d.value(3, type);
  return type;
}

void decode_add(Decoding& d) {
  if (has_float_type(d)) return decode_float_arithmetic(d);
  for (const std::string_view part : d.source.opcode)
    if (part == "cc") return decode_carry_add(d, false);
  const bool saturate = d.modifiers.take("sat");
  const Type type = take_operands(d);
  d.out.handler = saturate ? Map<add_saturated>::run : for_bits<Add>(type);
}

void decode_sub(Decoding& d) {
  if (has_float_type(d)) return decode_float_arithmetic(d);
  for (const std::string_view part : d.source.opcode)
    if (part == "cc") return decode_carry_add(d, true);
  const bool saturate = d.modifiers.take("sat");
  const Type type = take_operands(d);
  d.out.handler = saturate ? Map<sub_saturated>::run : for_bits<Sub>(type);
}

enum Part { LO, HI, WIDE };

void decode_mul(Decoding& d) {
  if (has_float_type(d)) return decode_float_arithmetic(d);
  const int part = d.modifiers.take_one({"lo", "hi", "wide"}, LO);
  const Type type = take_operands(d);
  d.out.handler = part == LO   ? for_bits<MulLo>(type)
                  : part == HI ? for_integer<MulHi>(type)
                               : for_widening<MulWide>(type);
}

void decode_mad(Decoding& d) {
  if (has_float_type(d)) return decode_float_arithmetic(d);
  const int part = d.modifiers.take_one({"lo", "hi", "wide"}, LO);
  const bool saturate = d.modifiers.take("sat");
  const bool writes = d.modifiers.take("cc");
  const bool reads = d.source.opcode.front() == "madc";
  const Type type = take_operands(d);
  if (reads || writes) {  // product into a scratch row, then an addition with carry
    Instruction product = d.out;
    product.dst = d.decoder.scratch();
    product.handler = part == LO ? for_bits<MulLo>(type) : for_integer<MulHi>(type);
    if (!product.handler || part == WIDE) d.fail("this type is not supported");
    d.decoder.emit(product);
    d.out.a = product.dst;
    d.out.b = d.out.c;
    d.out.c = d.decoder.carry();
    d.out.mode = static_cast<uint8_t>((reads ? READS : 0) | (writes ? WRITES : 0));
    d.out.handler =
        size_bytes(type) == 8 ? add_with_carry<uint64_t, false> : add_with_carry<uint32_t, false>;
    return;
  }
  d.out.handler = saturate     ? Map<mad_hi_saturated>::run
                  : part == LO ? for_bits<MadLo>(type)
                  : part == HI ? for_integer<MadHi>(type)
                               : for_widening<MadWide>(type);
}

void decode_mul24(Decoding& d) {
  const bool high = d.modifiers.take_one({"lo", "hi"}) == 1;
  const bool is_s32 = take_operands(d) == Type::S32;
  d.out.handler = is_s32
                      ? (high ? Map<mul24<int32_t, true>>::run : Map<mul24<int32_t, false>>::run)
                      : (high ? Map<mul24<uint32_t, true>>::run : Map<mul24<uint32_t, false>>::run);
}

void decode_mad24(Decoding& d) {
  const bool high = d.modifiers.take_one({"lo", "hi"}) == 1;
  const bool saturate = d.modifiers.take("sat");
  const bool is_s32 = take_operands(d) == Type::S32;
  d.out.handler = saturate ? Map<mad24_hi_saturated>::run
                  : is_s32
                      ? (high ? Map<mad24<int32_t, true>>::run : Map<mad24<int32_t, false>>::run)
                      : (high ? Map<mad24<uint32_t, true>>::run : Map<mad24<uint32_t, false>>::run);
}

template <class A, class B>
Handler pick_dot_product(int half) {
  using Half = std::conditional_t<std::is_signed_v<A>, int16_t, uint16_t>;
  return half < 0    ? Map<dot_product<A, B, 4, 0>>::run
         : half == 0 ? Map<dot_product<Half, B, 2, 0>>::run
                     : Map<dot_product<Half, B, 2, 2>>::run;
}

/// dp4a, and dp2a with its .lo or .hi half of b.
void decode_dot_product(Decoding& d) {
  const int half = d.modifiers.take_one({"lo", "hi"});
  const Type a = take_operands(d), b = d.modifiers.take_type();
  if (is_signed(a))
    d.out.handler = is_signed(b) ? pick_dot_product<int8_t, int8_t>(half)
                                 : pick_dot_product<int8_t, uint8_t>(half);
  else
    d.out.handler = is_signed(b) ? pick_dot_product<uint8_t, int8_t>(half)
                                 : pick_dot_product<uint8_t, uint8_t>(half);
}

/// The differences of the bytes or halves of a and b: each in its place, or all added to c.
template <int BITS, bool SUM>
uint32_t packed_differences(uint32_t a, uint32_t b, uint32_t c) {
  constexpr uint32_t MASK = (1u << BITS) - 1;
  uint32_t result = SUM ? c : 0;
  for (int shift = 0; shift < 32; shift += BITS) {
    const uint32_t x = a >> shift & MASK, y = b >> shift & MASK;
    result += (x > y ? x - y : y - x) << (SUM ? 0 : shift);
  }
  return result;
}

/// vabsdiff2 and vabsdiff4, the only video instructions that CUDA's headers have for sm_80.
template <int BITS>
void decode_packed_difference(Decoding& d) {
  const bool sum = d.modifiers.take("add");
  take_operands(d);
  d.modifiers.take_type(), d.modifiers.take_type();
  d.out.handler =
      sum ? Map<packed_differences<BITS, true>>::run : Map<packed_differences<BITS, false>>::run;
}

template <template <class> class Op>
void decode_either(Decoding& d) {
  if (has_float_type(d)) return decode_float_arithmetic(d);
  d.out.handler = for_integer<Op>(take_operands(d));
}

template <template <class> class Op>
void decode_signed(Decoding& d) {
  if (has_float_type(d)) return decode_float_arithmetic(d);
  d.out.handler = for_signed<Op>(take_operands(d));
}

}  // namespace

void add_integer_operations(OperationTable* table) {
  OperationTable& t = *table;
  t["add"] = decode_add;
  t["sub"] = decode_sub;
  t["addc"] = [](Decoding& d) { decode_carry_add(d, false); };
  t["subc"] = [](Decoding& d) { decode_carry_add(d, true); };
  t["mul"] = decode_mul;
  t["mad"] = t["madc"] = decode_mad;
  t["mul24"] = decode_mul24;
  t["mad24"] = decode_mad24;
  t["dp4a"] = t["dp2a"] = decode_dot_product;
  t["vabsdiff2"] = decode_packed_difference<16>;
  t["vabsdiff4"] = decode_packed_difference<8>;
  t["div"] = decode_either<Div>;
  t["rem"] = decode_either<Rem>;
  t["min"] = decode_either<Min>;
  t["max"] = decode_either<Max>;
  t["neg"] = decode_signed<Neg>;
  t["abs"] = decode_signed<Abs>;
  t["sad"] = decode_either<Sad>;
}

}  // namespace software_gpu
