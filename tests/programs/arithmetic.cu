// SPDX-License-Identifier: Apache-2.0
// Operations of C++ and of CUDA's headers that must give the same bits on every machine: integers,
// all four floating types, conversions between them, on special values and pseudo-random ones.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "results.h"

constexpr int N = 8192;
using bf16 = __nv_bfloat16;
using bf162 = __nv_bfloat162;
using i64 = long long;
using u64 = unsigned long long;

template <class T>
std::vector<uint64_t> specials() {
  if constexpr (std::is_same_v<T, float>)
    return {0,          0x80000000, 0x3f800000, 0xbf800000, 0x3f000000, 0x3fc00000, 0xc0200000,
            1,          0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000, 0x7f7fffff,
            0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7fc00001, 0xff800001, 0x4f000000,
            0xcf000000, 0x4f800000, 0x5f000000, 0xdf000000, 0x5f800000, 0x477ff000, 0x33000000,
            0x3f7fffff, 0x3f800001, 0x42fe0000, 0x43ff8000, 0xc3008000, 0x3effffff, 0x4b000001};
  else if constexpr (std::is_same_v<T, double>)
    return {0,
            1ull << 63,
            0x3ff0000000000000,
            0xbff0000000000000,
            0x3fe0000000000000,
            0x3ff8000000000000,
            0xc004000000000000,
            1,
            0x8000000000000001,
            0x000fffffffffffff,
            0x800fffffffffffff,
            0x0010000000000000,
            0x7fefffffffffffff,
            0xffefffffffffffff,
            0x7ff0000000000000,
            0xfff0000000000000,
            0x43e0000000000000,
            0xc3e0000000000000,
            0x43f0000000000000,
            0x41efffffffe00000,
            0x41dfffffffc00000,
            0xc1e0000000000000,
            0x380ffffff0000000,
            0x36a0000000000000,
            0x3ff0000010000000,
            0x3ff0020000000001,
            0x47efffffe0000000,
            0x47effffff0000000,
            0x3fdfffffffffffff,
            0x4330000000000001,
            0x7ff8000000000000,
            0xfff8000000000000,
            0x7ff0000000000001,
            0xfffabcdef0123456,
            0x7ff4000020000000};
  else if constexpr (std::is_same_v<T, __half> || std::is_same_v<T, __half2>)
    return {0,      0x8000, 0x3c00, 0xbc00, 0x3800, 0x3e00, 0xc100, 1,      0x8001, 0x03ff, 0x0400,
            0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e01, 0xfc01, 0x3c01, 0x5bf8, 0xd800, 0x6400, 0x6401};
  else if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, bf162>)
    return {0,      0x8000, 0x3f80, 0xbf80, 0x3f00, 0x3fc0, 0xc020, 1,      0x8001, 0x007f, 0x0080,
            0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc1, 0xff81, 0x3f81, 0x4f00, 0xd800, 0x4300, 0x4301};
  else {
    const uint64_t top = 1ull << (8 * sizeof(T) - 1);
    return {0,       1,     2,         3,         7,       8,       15,    16,  31,  32,
            33,      63,    64,        65,        127,     128,     255,   256, top, top - 1,
            top + 1, ~0ull, ~0ull - 1, ~0ull - 6, top / 2, 0x10001, 65535, 10,  1000};
  }
}

/// All pairs of special values come up in two columns of different stride, then random ones.
template <class T>
std::vector<T> inputs(int column) {
  const std::vector<uint64_t> special = specials<T>();
  const size_t size = special.size();
  std::vector<T> values(N);
  for (size_t i = 0; i < N; ++i) {
    const uint64_t dice = scrambled(i * 3 + column);
    const auto pick = [&](uint64_t n) { return special[n % size]; };
    const size_t chosen = column == 0 ? i : column == 1 ? i / size : scrambled(i);
    uint64_t bits = i < N / 2 ? pick(chosen) : dice;
    if constexpr (sizeof(T) == 4 && (std::is_same_v<T, __half2> || std::is_same_v<T, bf162>))
      if (i < N / 2) bits |= pick(dice) << 16;
    // Random numbers of similar size, so that sums and quotients are not trivial.
    if constexpr (std::is_same_v<T, float>)
      if (i > N / 4 * 3) bits = (dice & 0x87ffffff) | 0x3c000000;
    if constexpr (std::is_same_v<T, double>)
      if (i > N / 4 * 3) bits = (dice & 0x807fffffffffffff) | 0x3fc0000000000000;
    values[i] = from_bits<T>(bits);
  }
  return values;
}

/// The bits of each result in a word of its own: only the device knows what type it has.
template <class Op, class T>
__global__ void apply(u64* to, const T* a, const T* b, const T* c) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const auto result = Op::apply(a[i], b[i], c[i]);
  u64 bits = 0;
  memcpy(&bits, &result, sizeof result);
  to[i] = bits;
}

template <class Op, class T>
void run(const std::string& name) {
  static T* const a = on_device(inputs<T>(0));
  static T* const b = on_device(inputs<T>(1));
  static T* const c = on_device(inputs<T>(2));
  u64* to = on_device(std::vector<u64>(N));
  apply<Op, T><<<N / 256, 256>>>(to, a, b, c);
  CHECK(cudaGetLastError());
  print_checksum(name.c_str(), taken_back(to, N));
}

/// A NaN of f64 has the bits of its operand or not, as the machine likes: make them all the same.
__device__ double one_nan(double value) {
  return value != value ? __longlong_as_double(0x7ff8ll << 48) : value;
}

// Each entry: a name and an expression of a, b and c.
// clang-format off
#define INTEGER(X)                                                                             \
  X(sum, a + b * c) X(product, a * b) X(quotient, a / b) X(remainder, a % b) X(and_not, a & ~b) \
  X(less, (a < b) * 2 + (a <= c)) X(least, min(a, max(b, c)))
#define INTEGER_32(X)                                                                           \
  X(clz, __clz(a)) X(popc, __popc(a)) X(ffs, __ffs(a)) X(brev, __brev(a))                       \
  X(byte_perm, __byte_perm(a, b, c)) X(funnel_l, __funnelshift_l(a, b, c))                      \
  X(funnel_lc, __funnelshift_lc(a, b, c)) X(funnel_r, __funnelshift_r(a, b, c))                 \
  X(funnel_rc, __funnelshift_rc(a, b, c)) X(mulhi_s, __mulhi(int(a), int(b)))                   \
  X(mulhi_u, __umulhi(a, b)) X(mul24_s, __mul24(int(a), int(b))) X(mul24_u, __umul24(a, b))     \
  X(sad_s, __sad(int(a), int(b), c)) X(sad_u, __usad(a, b, c)) X(hadd, __hadd(int(a), int(b)))  \
  X(rhadd, __rhadd(int(a), int(b))) X(uhadd, __uhadd(a, b)) X(urhadd, __urhadd(a, b))           \
  X(dp4a_s, __dp4a(int(a), int(b), int(c))) X(dp4a_u, __dp4a(a, b, c))                          \
  X(dp2a, __dp2a_lo(int(a), int(b), int(c)) ^ __dp2a_hi(a, b, c))                               \
  X(vadd4, __vadd4(a, b)) X(vsubss2, __vsubss2(a, b)) X(vmaxs2, __vmaxs2(a, b))                 \
  X(vcmpgtu4, __vcmpgtu4(a, b))                                                                 \
  X(vaddus4, __vaddus4(a, b)) X(vavgu4, __vavgu4(a, b)) X(to_float_rn, __uint2float_rn(a))      \
  X(to_float_rz, __int2float_rz(int(a))) X(to_float_rd, __int2float_rd(int(a)))                 \
  X(to_float_ru, __uint2float_ru(a)) X(to_double, __int2double_rn(int(a)) + __uint2double_rn(b)) \
  X(to_half_rn, __int2half_rn(int(a))) X(to_half_rz, __uint2half_rz(a))                         \
  X(to_half_ru, __int2half_ru(int(a))) X(to_bf16, __int2bfloat16_rn(int(a)))                    \
  X(shifts, (a << (b & 31)) ^ (int(a) >> (c & 31)))
#define INTEGER_64(X)                                                                           \
  X(clzll, __clzll(a)) X(popcll, __popcll(a)) X(ffsll, __ffsll(a)) X(brevll, __brevll(a))       \
  X(mul64hi, __mul64hi(a, b)) X(umul64hi, __umul64hi(a, b)) X(to_float_rn, __ll2float_rn(a))    \
  X(to_float_rz, __ull2float_rz(a)) X(to_float_rd, __ll2float_rd(a))                            \
  X(to_float_ru, __ull2float_ru(a)) X(to_double_rn, __ll2double_rn(a))                          \
  X(to_double_rz, __ull2double_rz(a)) X(to_double_rd, __ull2double_rd(a))                       \
  X(to_double_ru, __ll2double_ru(a)) X(to_half, __ll2half_rn(a)) X(shifts, (a << (b & 63)) ^ (a >> (c & 63)))
#define FLOAT(X)                                                                                \
  X(add_rn, __fadd_rn(a, b)) X(add_rz, __fadd_rz(a, b)) X(add_rd, __fadd_rd(a, b))              \
  X(add_ru, __fadd_ru(a, b)) X(sub_rn, __fsub_rn(a, b)) X(sub_rz, __fsub_rz(a, b))              \
  X(mul_rn, __fmul_rn(a, b)) X(mul_rz, __fmul_rz(a, b)) X(mul_rd, __fmul_rd(a, b))              \
  X(mul_ru, __fmul_ru(a, b)) X(fma_rn, __fmaf_rn(a, b, c)) X(fma_rz, __fmaf_rz(a, b, c))        \
  X(fma_rd, __fmaf_rd(a, b, c)) X(fma_ru, __fmaf_ru(a, b, c)) X(div_rn, __fdiv_rn(a, b))        \
  X(div_rz, __fdiv_rz(a, b)) X(div_rd, __fdiv_rd(a, b)) X(div_ru, __fdiv_ru(a, b))              \
  X(rcp_rn, __frcp_rn(a)) X(rcp_rz, __frcp_rz(a)) X(rcp_rd, __frcp_rd(a))                       \
  X(rcp_ru, __frcp_ru(a)) X(sqrt_rn, __fsqrt_rn(a)) X(sqrt_rz, __fsqrt_rz(a))                   \
  X(sqrt_rd, __fsqrt_rd(a)) X(sqrt_ru, __fsqrt_ru(a)) X(saturate, __saturatef(a))               \
  X(min, fminf(a, b)) X(max, fmaxf(a, b)) X(compare, (a < b) | (a <= c) << 1 | (a == b) << 2 | (a != c) << 3) \
  X(classes, isnan(a) | isinf(a) << 1 | isfinite(a) << 2 | signbit(a) << 3)                     \
  X(floor, floorf(a)) X(ceil, ceilf(a)) X(trunc, truncf(a)) X(rint, rintf(a))                   \
  X(round, roundf(a)) X(fmod, fmodf(a, b)) X(remainder, remainderf(a, b))                       \
  X(nextafter, nextafterf(a, b)) X(ldexp, ldexpf(a, int(__float_as_uint(b) >> 20) - 2048))      \
  X(logb, logbf(a)) X(copysign, copysignf(a, b)) X(fdim, fdimf(a, b))                           \
  X(int_rn, __float2int_rn(a)) X(int_rz, __float2int_rz(a)) X(int_rd, __float2int_rd(a))        \
  X(int_ru, __float2int_ru(a)) X(uint_rn, __float2uint_rn(a)) X(uint_rz, __float2uint_rz(a))    \
  X(uint_rd, __float2uint_rd(a)) X(uint_ru, __float2uint_ru(a)) X(ll_rn, __float2ll_rn(a))      \
  X(ll_rz, __float2ll_rz(a)) X(ull_rd, __float2ull_rd(a)) X(ull_ru, __float2ull_ru(a))          \
  X(half_rn, __float2half_rn(a)) X(half_rz, __float2half_rz(a)) X(half_rd, __float2half_rd(a))  \
  X(half_ru, __float2half_ru(a)) X(bf16_rn, __float2bfloat16_rn(a))                             \
  X(bf16_rz, __float2bfloat16_rz(a)) X(bf16_rd, __float2bfloat16_rd(a))                         \
  X(bf16_ru, __float2bfloat16_ru(a)) X(half2, __floats2half2_rn(a, b))                          \
  X(bf162, __floats2bfloat162_rn(a, b)) X(to_double, one_nan(double(a)))
#define DOUBLE(X)                                                                               \
  X(add_rn, one_nan(__dadd_rn(a, b))) X(add_rz, one_nan(__dadd_rz(a, b)))                       \
  X(add_rd, one_nan(__dadd_rd(a, b))) X(add_ru, one_nan(__dadd_ru(a, b)))                       \
  X(mul_rn, one_nan(__dmul_rn(a, b))) X(mul_rz, one_nan(__dmul_rz(a, b)))                       \
  X(mul_rd, one_nan(__dmul_rd(a, b))) X(mul_ru, one_nan(__dmul_ru(a, b)))                       \
  X(fma_rn, one_nan(__fma_rn(a, b, c))) X(fma_rz, one_nan(__fma_rz(a, b, c)))                   \
  X(fma_rd, one_nan(__fma_rd(a, b, c))) X(fma_ru, one_nan(__fma_ru(a, b, c)))                   \
  X(div_rn, one_nan(__ddiv_rn(a, b))) X(div_rz, one_nan(__ddiv_rz(a, b)))                       \
  X(div_rd, one_nan(__ddiv_rd(a, b))) X(div_ru, one_nan(__ddiv_ru(a, b)))                       \
  X(rcp_rn, one_nan(__drcp_rn(a))) X(rcp_ru, one_nan(__drcp_ru(a)))                             \
  X(sqrt_rn, one_nan(__dsqrt_rn(a))) X(sqrt_rz, one_nan(__dsqrt_rz(a)))                         \
  X(sqrt_rd, one_nan(__dsqrt_rd(a))) X(sqrt_ru, one_nan(__dsqrt_ru(a)))                         \
  X(min, one_nan(fmin(a, b))) X(max, one_nan(fmax(a, b)))                                       \
  X(floor, one_nan(floor(a))) X(ceil, one_nan(ceil(a))) X(trunc, one_nan(trunc(a)))             \
  X(rint, one_nan(rint(a))) X(fmod, one_nan(fmod(a, b))) X(compare, (a < b) | (a >= c) << 1 | (a == b) << 2) \
  X(int_rn, __double2int_rn(a)) X(int_rz, __double2int_rz(a)) X(uint_rd, __double2uint_rd(a))   \
  X(uint_ru, __double2uint_ru(a)) X(ll_rn, __double2ll_rn(a)) X(ll_rd, __double2ll_rd(a))       \
  X(ull_rz, __double2ull_rz(a)) X(ull_ru, __double2ull_ru(a)) X(float_rn, __double2float_rn(a)) \
  X(float_rz, __double2float_rz(a)) X(float_rd, __double2float_rd(a))                           \
  X(float_ru, __double2float_ru(a)) X(half, __double2half(a)) X(bf16, __double2bfloat16(a))     \
  X(hiloint, __hiloint2double(__double2loint(a), __double2hiint(b)) == a)
#define HALVES(X)                                                                               \
  X(add, __hadd(a, b)) X(sub, __hsub(a, b)) X(mul, __hmul(a, b)) X(div, __hdiv(a, b))           \
  X(fma, __hfma(a, b, c)) X(fma_relu, __hfma_relu(a, b, c)) X(add_sat, __hadd_sat(a, b))        \
  X(mul_sat, __hmul_sat(a, b)) X(fma_sat, __hfma_sat(a, b, c)) X(neg, __hneg(a))                \
  X(abs, __habs(a)) X(min, __hmin(a, b)) X(max, __hmax(a, b)) X(min_nan, __hmin_nan(a, b))      \
  X(max_nan, __hmax_nan(a, b)) X(less, __hlt(a, b) | __hltu(a, c) << 1)                         \
  X(equal, __heq(a, b) | __hneu(a, c) << 1 | __hisnan(a) << 2)                                  \
  X(floor, hfloor(a)) X(ceil, hceil(a)) X(trunc, htrunc(a)) X(rint, hrint(a)) X(sqrt, hsqrt(a)) \
  X(rcp, hrcp(a)) X(to_float, float(a))
#define HALF_ONLY(X)                                                                            \
  X(int_rn, __half2int_rn(a)) X(int_rz, __half2int_rz(a)) X(uint_rd, __half2uint_rd(a))         \
  X(ll_ru, __half2ll_ru(a)) X(short_rn, __half2short_rn(a)) X(ushort_rz, __half2ushort_rz(a))
#define BF16_ONLY(X)                                                                            \
  X(int_rn, __bfloat162int_rn(a)) X(int_rz, __bfloat162int_rz(a))                               \
  X(uint_rd, __bfloat162uint_rd(a)) X(ll_ru, __bfloat162ll_ru(a))
#define PAIRS(X)                                                                                \
  X(add2, __hadd2(a, b)) X(sub2, __hsub2(a, b)) X(mul2, __hmul2(a, b)) X(fma2, __hfma2(a, b, c)) \
  X(fma2_relu, __hfma2_relu(a, b, c)) X(add2_sat, __hadd2_sat(a, b)) X(min2, __hmin2(a, b))     \
  X(max2, __hmax2(a, b)) X(max2_nan, __hmax2_nan(a, b)) X(equal2, __heq2(a, b))                 \
  X(less2, __hlt2(a, b)) X(greater2_unordered, __hgtu2(a, b)) X(all_less2, __hblt2(a, b))       \
  X(mask_less2, __hlt2_mask(a, b)) X(swap, __lowhigh2highlow(a)) X(neg2, __hneg2(a))

// clang-format on

#define DEFINE(name, expression)                  \
  struct name##_ {                                \
    template <class T>                            \
    __device__ static auto apply(T a, T b, T c) { \
      return expression;                          \
    }                                             \
  };
#define RUN(name, expression) run<operations::name##_, Type>(prefix + #name);
#define GROUP(group, list)                  \
  namespace group {                         \
  namespace operations {                    \
  list(DEFINE)                              \
  }                                         \
  template <class Type>                     \
  void run_all(const std::string& prefix) { \
    list(RUN)                               \
  }                                         \
  }

GROUP(integer, INTEGER)
GROUP(integer_32, INTEGER_32)
GROUP(integer_64, INTEGER_64)
GROUP(of_float, FLOAT)
GROUP(of_double, DOUBLE)
GROUP(halves, HALVES)
GROUP(half_only, HALF_ONLY)
GROUP(bf16_only, BF16_ONLY)
GROUP(pairs, PAIRS)

int main() {
  integer::run_all<short>("s16 ");
  integer::run_all<unsigned short>("u16 ");
  integer::run_all<int>("s32 ");
  integer::run_all<unsigned>("u32 ");
  integer::run_all<i64>("s64 ");
  integer::run_all<u64>("u64 ");
  integer_32::run_all<unsigned>("32 bits ");
  integer_64::run_all<u64>("64 bits ");
  of_float::run_all<float>("f32 ");
  of_double::run_all<double>("f64 ");
  halves::run_all<__half>("f16 ");
  half_only::run_all<__half>("f16 ");
  halves::run_all<bf16>("bf16 ");
  bf16_only::run_all<bf16>("bf16 ");
  pairs::run_all<__half2>("f16x2 ");
  pairs::run_all<bf162>("bf16x2 ");
  return finish("arithmetic");
}
