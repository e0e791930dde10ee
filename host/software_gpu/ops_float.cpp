// SPDX-License-Identifier: Apache-2.0
// Floating-point arithmetic. f32 and f64 round as told; f16 and bf16 to nearest even. The .approx
// functions are computed exactly rounded or nearly so: closer to the truth than hardware, so their
// results may differ from a GPU's in the last bits.
#include <algorithm>
#include <cfenv>

#include "decoder.h"
#include "half.h"
#include "map.h"

namespace software_gpu {
namespace {

template <class T>
struct FAdd {
  static T apply(T a, T b) { return canonical(a + b); }
};
template <class T>
struct FSub {
  static T apply(T a, T b) { return canonical(a - b); }
};
template <class T>
struct FMul {
  static T apply(T a, T b) { return canonical(a * b); }
};
template <class T>
struct FDiv {
  static T apply(T a, T b) { return canonical(a / b); }
};
template <class T>
struct FFma {
  static T apply(T a, T b, T c) { return canonical(std::fma(a, b, c)); }
};
template <class T>
struct FNeg {
  static T apply(T a) { return -a; }
};
template <class T>
struct FAbs {
  static T apply(T a) { return std::fabs(a); }
};
template <class T>
struct FMin {
  static T apply(T a, T b) {
    if (a == b) return std::signbit(a) ? a : b;
    return std::isnan(a) ? canonical(b) : std::isnan(b) ? a : a < b ? a : b;
  }
};
template <class T>
struct FMax {
  static T apply(T a, T b) {
    if (a == b) return std::signbit(a) ? b : a;
    return std::isnan(a) ? canonical(b) : std::isnan(b) ? a : a > b ? a : b;
  }
};
template <class T>
struct FMinNan {
  static T apply(T a, T b) {
    return std::isnan(a) || std::isnan(b) ? canonical(a + b) : FMin<T>::apply(a, b);
  }
};
template <class T>
struct FMaxNan {
  static T apply(T a, T b) {
    return std::isnan(a) || std::isnan(b) ? canonical(a + b) : FMax<T>::apply(a, b);
  }
};
template <class T>
struct FRcp {
  static T apply(T a) { return canonical(1 / a); }
};
template <class T>
struct FSqrt {
  static T apply(T a) { return canonical(std::sqrt(a)); }
};
template <class T>
struct FRsqrt {
  static T apply(T a) { return canonical(static_cast<T>(1 / std::sqrt(static_cast<double>(a)))); }
};
template <class T>
struct FCopysign {
  static T apply(T a, T b) { return std::copysign(b, a); }
};
template <class T>
struct FSin {
  static T apply(T a) { return canonical(std::sin(a)); }
};
template <class T>
struct FCos {
  static T apply(T a) { return canonical(std::cos(a)); }
};
template <class T>
struct FLg2 {
  static T apply(T a) { return canonical(std::log2(a)); }
};
template <class T>
struct FEx2 {
  static T apply(T a) { return canonical(std::exp2(a)); }
};
template <class T>
struct FTanh {
  static T apply(T a) { return canonical(std::tanh(a)); }
};

/// div.approx.f32 multiplies by a reciprocal, which is 0 above 2^126.
float coarse_divide(float a, float b) {
  const bool vanishes = std::fabs(b) > 0x1p126f && std::isfinite(b);
  return canonical(vanishes ? a * std::copysign(0.0f, b) : a / b);
}

/// rcp and rsqrt .approx.ftz.f64 look at the upper word of a number and make that of the result.
double coarse(double a, double (*f)(double)) {
  const double upper = std::bit_cast<double>(std::bit_cast<uint64_t>(a) >> 32 << 32);
  if (std::isnan(upper)) return a;
  const double result = f(upper);
  if (std::isnan(result)) return result;
  return std::bit_cast<double>((std::bit_cast<uint64_t>(result) + (1ull << 31)) >> 32 << 32);
}
double coarse_rcp(double a) { return coarse(a, FRcp<double>::apply); }
double coarse_rsqrt(double a) { return coarse(a, FRsqrt<double>::apply); }

/// rsqrt.approx.f64: what ptxas makes of it, so that the last bit is the same.
double refined_rsqrt(double a) {
  const double y = coarse_rsqrt(a);
  if (!(std::fabs(a) >= std::numeric_limits<double>::min()) || !std::isfinite(y) || y == 0)
    return FRsqrt<double>::apply(a);
  const double e = std::fma(-a, y * y, 1);
  return std::fma(std::fma(e, 0.375, 0.5), e * y, y);
}

constexpr int ROUNDING[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

template <class T>
T flushed(T value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(T{0}, value) : value;
}

/// The handler of F with any of .rz/.rm/.rp, .ftz and .sat.
template <auto F>
struct Careful;
template <class T, class... A, T (*F)(T, A...)>
struct Careful<F> {
  static void run(Block& block, const Instruction& in, const Lanes& lanes) {
    uint64_t* d = block.row(in.dst);
    const Row rows[3] = {in.a, in.b, in.c};
    const uint64_t* sources[3];
    for (size_t k = 0; k < 3; ++k) sources[k] = block.row(rows[k] == NO_ROW ? in.a : rows[k]);
    const int before = std::fegetround();
    std::fesetround(ROUNDING[in.mode]);
    for_each(lanes, [&](uint32_t i) {
      const auto get = [&](size_t k) {
        const T value = from_slot<T>(sources[k][i]);
        return in.flush ? flushed(value) : value;
      };
      T result;
      if constexpr (sizeof...(A) == 0)
        result = F(get(0));
      else if constexpr (sizeof...(A) == 1)
        result = F(get(0), get(1));
      else
        result = F(get(0), get(1), get(2));
      if (in.flush) result = flushed(result);
      if (in.saturate) result = result > 0 ? std::min(result, T{1}) : T{0};  // NaN becomes 0
      d[i] = to_slot<T>(result);
    });
    std::fesetround(before);
  }
};

/// The same for a number of a 16-bit type.
template <class H>
double flushed(double value) {
  return std::fabs(value) < H::SMALLEST_NORMAL ? std::copysign(0.0, value) : value;
}

/// f16, bf16 and their pairs, on one or two numbers per slot.
template <class H, double (*F)(double, double, double), int N>
void half_map(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  const uint64_t* b = block.row(in.b == NO_ROW ? in.a : in.b);
  const uint64_t* c = block.row(in.c == NO_ROW ? in.a : in.c);
  for_each(lanes, [&](uint32_t i) {
    uint64_t result = 0;
    for (int k = 0; k < N; ++k) {
      const auto get = [&](const uint64_t* row) {
        const double number = H{static_cast<uint16_t>(row[i] >> (16 * k))};
        return in.flush ? flushed<H>(number) : number;
      };
      double value = F(get(a), get(b), get(c));
      if (in.saturate) value = value > 0 ? std::min(value, 1.0) : 0.0;
      if (in.mode == 1 && value <= 0) value = 0;  // fma.relu
      H rounded = H::from(value);
      if (in.flush) rounded = H::from(flushed<H>(double{rounded}));
      result |= uint64_t{rounded.bits} << (16 * k);
    }
    d[i] = result;
  });
}

template <double (*F)(double, double, double)>
Handler for_half(Type type) {
  switch (type) {
    case Type::F16:
      return half_map<Half, F, 1>;
    case Type::F16X2:
      return half_map<Half, F, 2>;
    case Type::BF16:
      return half_map<Bfloat, F, 1>;
    case Type::BF16X2:
      return half_map<Bfloat, F, 2>;
    default:
      return nullptr;
  }
}

double half_add(double a, double b, double) { return a + b; }
double half_sub(double a, double b, double) { return a - b; }
double half_mul(double a, double b, double) { return a * b; }
/// a * b is exact here. The sum keeps a trace of what it loses (its last bit is set, "round to
/// odd"), or rounding it once more could go wrong at a tie.
double half_fma(double a, double b, double c) {
  const double product = a * b, sum = product + c;
  const double c_used = sum - product, lost = (product - (sum - c_used)) + (c - c_used);
  if (!std::isfinite(sum) || lost == 0 || std::bit_cast<uint64_t>(sum) & 1) return sum;
  return std::nextafter(sum, lost > 0 ? INFINITY : -INFINITY);
}
double half_neg(double a, double, double) { return -a; }
double half_abs(double a, double, double) { return std::fabs(a); }
double half_min(double a, double b, double) { return FMin<double>::apply(a, b); }
double half_max(double a, double b, double) { return FMax<double>::apply(a, b); }
double half_min_nan(double a, double b, double) { return FMinNan<double>::apply(a, b); }
double half_max_nan(double a, double b, double) { return FMaxNan<double>::apply(a, b); }
double half_ex2(double a, double, double) { return std::exp2(a); }
double half_tanh(double a, double, double) { return std::tanh(a); }

struct Family {
  Handler plain32, careful32, plain64, careful64, (*half)(Type);
};

template <template <class> class Op>
constexpr Family family(Handler (*half)(Type) = nullptr) {
  return {Map<Op<float>::apply>::run, Careful<Op<float>::apply>::run, Map<Op<double>::apply>::run,
          Careful<Op<double>::apply>::run, half};
}

const std::unordered_map<std::string_view, Family>& families() {
  static const std::unordered_map<std::string_view, Family> table = {
      {"add", family<FAdd>(for_half<half_add>)},
      {"sub", family<FSub>(for_half<half_sub>)},
      {"mul", family<FMul>(for_half<half_mul>)},
      {"fma", family<FFma>(for_half<half_fma>)},
      {"mad", family<FFma>()},
      {"div", family<FDiv>()},
      {"neg", family<FNeg>(for_half<half_neg>)},
      {"abs", family<FAbs>(for_half<half_abs>)},
      {"min", family<FMin>(for_half<half_min>)},
      {"max", family<FMax>(for_half<half_max>)},
      {"min.NaN", family<FMinNan>(for_half<half_min_nan>)},
      {"max.NaN", family<FMaxNan>(for_half<half_max_nan>)},
      {"rcp", family<FRcp>()},
      {"sqrt", family<FSqrt>()},
      {"rsqrt", family<FRsqrt>()},
      {"sin", family<FSin>()},
      {"cos", family<FCos>()},
      {"lg2", family<FLg2>()},
      {"ex2", family<FEx2>(for_half<half_ex2>)},
      {"tanh", family<FTanh>(for_half<half_tanh>)},
      {"copysign", family<FCopysign>()}};
  return table;
}

enum TestKind : uint8_t { FINITE, INFINITE, NUMBER, NOT_A_NUMBER, NORMAL, SUBNORMAL };

template <class T>
void test_property(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  for_each(lanes, [&](uint32_t i) {
    const T value = from_slot<T>(a[i]);
    const int kind = std::fpclassify(value);
    switch (in.mode) {
      case FINITE:
        d[i] = std::isfinite(value);
        break;
      case INFINITE:
        d[i] = kind == FP_INFINITE;
        break;
      case NUMBER:
        d[i] = kind != FP_NAN;
        break;
      case NOT_A_NUMBER:
        d[i] = kind == FP_NAN;
        break;
      case NORMAL:
        d[i] = kind == FP_NORMAL || kind == FP_ZERO;
        break;
      default:
        d[i] = kind == FP_SUBNORMAL;
        break;
    }
  });
}

void decode_testp(Decoding& d) {
  const int kind =
      d.modifiers.take_one({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  if (kind < 0) d.fail("no property");
  d.out.mode = static_cast<uint8_t>(kind);
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  d.out.handler = type == Type::F32 ? test_property<float> : test_property<double>;
}

}  // namespace

void decode_float_arithmetic(Decoding& d) {
  std::string name(d.source.opcode.front());
  if (d.modifiers.take("NaN")) name += ".NaN";
  const bool relu = d.modifiers.take("relu");
  const int rounding = d.modifiers.take_one({"rn", "rz", "rm", "rp"}, 0);
  const bool approximate = d.modifiers.take("approx");
  d.modifiers.ignore({"full"});
  d.out.flush = d.modifiers.take("ftz");
  d.out.saturate = d.modifiers.take("sat");
  const Type type = d.modifiers.take_type();
  const auto found = families().find(name);
  if (found == families().end()) d.fail("not supported on this type");
  const Family& family = found->second;
  d.set_dst();
  d.out.a = d.value(1, type);
  if (d.n_operands() > 2) d.out.b = d.value(2, type);
  if (d.n_operands() > 3) d.out.c = d.value(3, type);
  const bool careful = rounding != 0 || d.out.flush || d.out.saturate;
  d.out.mode = static_cast<uint8_t>(rounding);
  if (type == Type::F32) {
    d.out.handler = careful ? family.careful32 : family.plain32;
    if (approximate && name == "div") d.out.handler = Careful<coarse_divide>::run;
  } else if (type == Type::F64) {
    d.out.handler = careful ? family.careful64 : family.plain64;
    if (approximate && d.out.flush)
      d.out.handler = name == "rcp" ? Careful<coarse_rcp>::run : Careful<coarse_rsqrt>::run;
    else if (name == "rsqrt")
      d.out.handler = Map<refined_rsqrt>::run;
  } else {
    if (rounding != 0) d.fail("only .rn is supported on this type");
    d.out.mode = relu;
    d.out.handler = family.half ? family.half(type) : nullptr;
    return;
  }
  if (relu) d.fail(".relu is not supported on this type");
}

void add_float_operations(OperationTable* table) {
  for (const char* name :
       {"fma", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "copysign"})
    (*table)[name] = decode_float_arithmetic;
  (*table)["testp"] = decode_testp;
}

}  // namespace software_gpu
