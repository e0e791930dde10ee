// SPDX-License-Identifier: Apache-2.0
// cvt, cvta and isspacep.
#include <cfenv>
#include <utility>

#include "decoder.h"
#include "half.h"
#include "map.h"

namespace software_gpu {
namespace {

// Instruction::mode of a conversion
enum IntegerRounding : uint8_t { RNI = RP + 1, RZI, RMI, RPI };  // after those of half.h
constexpr int FENV[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD,
                        FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

template <class T>
constexpr bool IS_HALF = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;
template <class T>
constexpr bool IS_FLOAT = std::is_floating_point_v<T> || IS_HALF<T>;

float flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

/// Float to integer: out of range goes to the nearest end.
template <class D, class A>
D to_integer(double value) {
  if (std::isnan(value))
    return sizeof(A) == 8 || sizeof(D) == 8 ? static_cast<D>(uint64_t{1} << (8 * sizeof(D) - 1))
                                            : 0;
  if (value <= static_cast<double>(std::numeric_limits<D>::min()))
    return std::numeric_limits<D>::min();
  if (value >= static_cast<double>(std::numeric_limits<D>::max()))
    return std::numeric_limits<D>::max();
  return static_cast<D>(value);
}

/// A NaN of f64 keeps what the narrower type has room for, as on NVIDIA's GPUs.
template <class D>
D narrowed_nan(double value) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if constexpr (std::is_same_v<D, float>)
    return std::bit_cast<float>(bits);
  else
    return D{static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7c00 | (bits >> 13 & 0x3ff))};
}

template <class D, class A>
D convert(A value, const Instruction& in) {
  if constexpr (!IS_FLOAT<D> && !IS_FLOAT<A>) {
    if (in.saturate) {
      if (std::cmp_less(value, std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
      if (std::cmp_greater(value, std::numeric_limits<D>::max()))
        return std::numeric_limits<D>::max();
    }
    return static_cast<D>(value);
  } else if constexpr (!IS_FLOAT<D>) {
    double wide = static_cast<double>(value);
    if (in.flush && std::fabs(wide) < std::numeric_limits<float>::min()) wide = 0;
    return to_integer<D, A>(std::nearbyint(wide));
  } else {
    using Work = std::conditional_t<IS_HALF<D>, double, D>;
    Work result;
    if constexpr (std::is_same_v<A, double> && !std::is_same_v<D, double>)
      if (std::isnan(value) && !in.saturate) return narrowed_nan<D>(value);
    if constexpr (std::is_same_v<A, float> && !IS_HALF<D>)  // .ftz or not, as NVIDIA's GPUs do
      if (in.flush) value = flushed(value);
    if constexpr (IS_HALF<A>)
      result = static_cast<float>(value);
    else
      result = static_cast<Work>(value);
    if constexpr (IS_FLOAT<A>)
      if (in.mode >= RNI) result = std::nearbyint(result);
    if constexpr (std::is_same_v<D, float>)
      if (in.flush) result = flushed(result);
    if (in.imm != 0 && result <= 0) result = 0;  // .relu
    if (in.saturate) result = result > 0 ? std::min(result, Work{1}) : Work{0};
    if constexpr (IS_HALF<D>)
      return D::from(result, in.mode % RNI);
    else
      return canonical(result);
  }
}

template <class D, class A>
void convert_all(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  constexpr bool integers = !IS_FLOAT<D> && !IS_FLOAT<A>;
  // The destination register may be wider than the type: signed results are extended to the slot.
  const auto put = [](D value) {
    if constexpr (std::is_integral_v<D>)
      return static_cast<uint64_t>(
          static_cast<std::conditional_t<std::is_signed_v<D>, int64_t, uint64_t>>(value));
    else
      return to_slot<D>(value);
  };
  if (integers || in.mode == RN) {
    for_each(lanes, [&](uint32_t i) { d[i] = put(convert<D, A>(from_slot<A>(a[i]), in)); });
    return;
  }
  const int before = std::fegetround();
  std::fesetround(FENV[in.mode]);
  for_each(lanes, [&](uint32_t i) { d[i] = put(convert<D, A>(from_slot<A>(a[i]), in)); });
  std::fesetround(before);
}

template <class D>
Handler from_type(Type source) {
  switch (source) {
    case Type::U8:
    case Type::B8:
      return convert_all<D, uint8_t>;
    case Type::U16:
    case Type::B16:
      return convert_all<D, uint16_t>;
    case Type::U32:
    case Type::B32:
      return convert_all<D, uint32_t>;
    case Type::U64:
    case Type::B64:
      return convert_all<D, uint64_t>;
    case Type::S8:
      return convert_all<D, int8_t>;
    case Type::S16:
      return convert_all<D, int16_t>;
    case Type::S32:
      return convert_all<D, int32_t>;
    case Type::S64:
      return convert_all<D, int64_t>;
    case Type::F16:
      return convert_all<D, Half>;
    case Type::BF16:
      return convert_all<D, Bfloat>;
    case Type::F32:
      return convert_all<D, float>;
    case Type::F64:
      return convert_all<D, double>;
    default:
      return nullptr;
  }
}

Handler pick(Type to, Type from) {
  switch (to) {
    case Type::U8:
    case Type::B8:
      return from_type<uint8_t>(from);
    case Type::U16:
    case Type::B16:
      return from_type<uint16_t>(from);
    case Type::U32:
    case Type::B32:
      return from_type<uint32_t>(from);
    case Type::U64:
    case Type::B64:
      return from_type<uint64_t>(from);
    case Type::S8:
      return from_type<int8_t>(from);
    case Type::S16:
      return from_type<int16_t>(from);
    case Type::S32:
      return from_type<int32_t>(from);
    case Type::S64:
      return from_type<int64_t>(from);
    case Type::F16:
      return from_type<Half>(from);
    case Type::BF16:
      return from_type<Bfloat>(from);
    case Type::F32:
      return from_type<float>(from);
    case Type::F64:
      return from_type<double>(from);
    default:
      return nullptr;
  }
}

template <class H>
void convert_pair(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t *high = block.row(in.a), *low = block.row(in.b);
  const auto half = [&](uint64_t slot) {
    return uint32_t{convert<H, float>(from_slot<float>(slot), in).bits};
  };
  for_each(lanes, [&](uint32_t i) { d[i] = half(high[i]) << 16 | half(low[i]); });
}

void decode_cvt(Decoding& d) {
  d.out.mode = static_cast<uint8_t>(
      d.modifiers.take_one({"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"}, RN));
  d.out.flush = d.modifiers.take("ftz");
  d.out.saturate = d.modifiers.take("sat");
  d.out.imm = d.modifiers.take("relu");
  const Type to = d.modifiers.take_type(), from = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, from);
  if (to == Type::F16X2 || to == Type::BF16X2) {  // two sources, the first one goes up
    d.out.b = d.value(2, from);
    d.out.handler = to == Type::F16X2 ? convert_pair<Half> : convert_pair<Bfloat>;
    return;
  }
  d.out.handler = pick(to, from);
}

/// `mode`: what to do with the base of the thread's window.
enum Window : uint8_t { SHARED_TO_GENERIC, GENERIC_TO_SHARED, LOCAL_TO_GENERIC, GENERIC_TO_LOCAL };

void convert_address(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  for_each(lanes, [&](uint32_t i) {
    switch (in.mode) {
      case SHARED_TO_GENERIC:
        d[i] = a[i] + block.shared_base();
        break;
      case GENERIC_TO_SHARED:
        d[i] = a[i] - block.shared_base();
        break;
      case LOCAL_TO_GENERIC:
        d[i] = a[i] + block.local_base(i);
        break;
      default:
        d[i] = a[i] - block.local_base(i);
        break;
    }
  });
}

uint64_t same(uint64_t a) { return a; }

void decode_cvta(Decoding& d) {
  const bool to = d.modifiers.take("to");
  const int space = d.modifiers.take_one({"global", "const", "param", "shared", "local"});
  if (space < 0) d.fail("this space is not supported");
  if (size_bytes(d.modifiers.take_type()) != 8) d.fail("only 64-bit addresses are supported");
  d.set_dst();
  d.out.a = d.value(1, Type::U64);
  d.out.handler = space < 3 ? Map<same>::run : convert_address;
  d.out.mode =
      static_cast<uint8_t>((space == 3 ? SHARED_TO_GENERIC : LOCAL_TO_GENERIC) + (to ? 1 : 0));
}

void is_in_space(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  for_each(lanes, [&](uint32_t i) {
    const bool shared = a[i] - block.shared_base() < block.shared_bytes();
    const bool local = block.is_local(a[i]);
    d[i] = in.space == Space::SHARED  ? shared
           : in.space == Space::LOCAL ? local
                                      : !shared && !local;
  });
}

void decode_isspacep(Decoding& d) {
  const int space = d.modifiers.take_one({"global", "shared", "local"});
  if (space < 0) d.fail("this space is not supported");
  d.out.space = space == 1 ? Space::SHARED : space == 2 ? Space::LOCAL : Space::GENERIC;
  d.set_dst();
  d.out.a = d.value(1, Type::U64);
  d.out.handler = is_in_space;
}

}  // namespace

void add_convert_operations(OperationTable* table) {
  (*table)["cvt"] = decode_cvt;
  (*table)["cvta"] = decode_cvta;
  (*table)["isspacep"] = decode_isspacep;
}

}  // namespace software_gpu
