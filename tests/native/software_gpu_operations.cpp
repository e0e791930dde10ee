// SPDX-License-Identifier: Apache-2.0
// Every operation against a scalar oracle written independently of the interpreter.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "software_gpu_test.h"

using namespace software_gpu_test;

namespace {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using i128 = __int128;

float f(u64 bits) { return std::bit_cast<float>(static_cast<u32>(bits)); }
double d(u64 bits) { return std::bit_cast<double>(bits); }
u64 b(float value) { return std::bit_cast<u32>(value); }
u64 b(double value) { return std::bit_cast<u64>(value); }

struct Input {
  u64 a, b, c;
};

/// What a case leaves its result in: %r9, %rd9, %f9, %d9, %h9 or %p9.
enum class Result { R, RD, F, D, H, P };

struct Case {
  const char* code;
  Result result;
  u64 (*oracle)(u64 a, u64 b, u64 c);
};

std::string program(const Case& test) {
  static const char* const STORES[] = {"cvt.u64.u32 %rd9, %r9;",
                                       "",
                                       "mov.b32 %r9, %f9; cvt.u64.u32 %rd9, %r9;",
                                       "mov.b64 %rd9, %d9;",
                                       "cvt.u64.u16 %rd9, %h9;",
                                       "selp.u64 %rd9, 1, 0, %p9;"};
  return R"(.visible .entry k(.param .u64 in, .param .u64 out) {
  .reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .b16 %h<20>; .reg .f32 %f<20>; .reg .f64 %d<20>; .reg .pred %p<20>;
  ld.param.u64 %rd11, [in];
  ld.param.u64 %rd12, [out];
  mov.u32 %r11, %ctaid.x;
  mov.u32 %r12, %ntid.x;
  mov.u32 %r13, %tid.x;
  mad.lo.s32 %r11, %r11, %r12, %r13;
  mul.wide.u32 %rd13, %r11, 24;
  add.s64 %rd11, %rd11, %rd13;
  ld.global.u64 %rd1, [%rd11];
  ld.global.u64 %rd2, [%rd11+8];
  ld.global.u64 %rd3, [%rd11+16];
  cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2; cvt.u32.u64 %r3, %rd3;
  cvt.u16.u64 %h1, %rd1; cvt.u16.u64 %h2, %rd2; cvt.u16.u64 %h3, %rd3;
  mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3;
  mov.b64 %d1, %rd1; mov.b64 %d2, %rd2; mov.b64 %d3, %rd3;
  setp.ne.u32 %p1, %r1, 0; setp.gt.s32 %p2, %r2, %r3;
)" + std::string(test.code) +
         STORES[static_cast<int>(test.result)] + R"(
  mul.wide.u32 %rd13, %r11, 8;
  add.s64 %rd12, %rd12, %rd13;
  st.global.u64 [%rd12], %rd9;
  ret;
})";
}

std::vector<Input> integer_inputs() {
  const u64 edges[] = {0,
                       1,
                       2,
                       7,
                       31,
                       32,
                       33,
                       63,
                       64,
                       0x7f,
                       0x80,
                       0xff,
                       0x7fff,
                       0x8000,
                       0xffff,
                       0x7fffffff,
                       0x80000000,
                       0xffffffff,
                       0x100000000,
                       0x7fffffffffffffff,
                       0x8000000000000000,
                       0xffffffffffffffff};
  std::vector<Input> inputs;
  for (const u64 x : edges)
    for (const u64 y : edges) inputs.push_back({x, y, x ^ (y << 3)});
  std::mt19937_64 random(1);
  while (inputs.size() < 1024) inputs.push_back({random(), random(), random() >> (random() % 64)});
  return inputs;
}

std::vector<Input> float_inputs() {
  const float edges[] = {0.0f, -0.0f,       1.0f,  -1.0f,    0.5f,     1.5f,    2.5f,     -2.5f,
                         3e9f, -3e9f,       1e30f, 1e-40f,   -1e-45f,  3.4e38f, INFINITY, -INFINITY,
                         NAN,  16777217.0f, 0.1f,  65504.0f, 65520.0f, 6e-8f};
  std::vector<Input> inputs;
  for (const float x : edges)
    for (const float y : edges) inputs.push_back({b(x), b(y), b(x * 0.5f + 1)});
  std::mt19937 random(2);
  std::uniform_real_distribution<float> real(-1000, 1000);
  while (inputs.size() < 1024)
    inputs.push_back({b(real(random)), b(real(random)), b(real(random))});
  return inputs;
}

std::vector<Input> double_inputs() {
  std::vector<Input> inputs = float_inputs();
  for (Input& input : inputs)
    input = {b(double{f(input.a)} * 1.0000001), b(double{f(input.b)}), b(double{f(input.c)} / 3)};
  return inputs;
}

bool is_nan(u64 bits, Result result) {
  return result == Result::F ? std::isnan(f(bits)) : result == Result::D && std::isnan(d(bits));
}

void check(const std::vector<Case>& cases, std::vector<Input> inputs) {
  Gpu gpu;
  inputs.resize(inputs.size() / 64 * 64);
  const Buffer<Input> in(inputs);
  for (const Case& test : cases) {
    CAPTURE(test.code);
    Buffer<u64> out(std::vector<u64>(inputs.size(), 0xdeadbeef));
    const CUfunction kernel = gpu.kernel(program(test));
    CU(gpu.launch(kernel, static_cast<unsigned>(inputs.size() / 64), 64, nullptr, in.pointer,
                  out.pointer));
    const std::vector<u64> got = out.read();
    int n_wrong = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const u64 want = test.oracle(inputs[i].a, inputs[i].b, inputs[i].c);
      if (got[i] == want || (is_nan(got[i], test.result) && is_nan(want, test.result))) continue;
      if (n_wrong++ < 3)
        MESSAGE("a=", inputs[i].a, " b=", inputs[i].b, " c=", inputs[i].c, " got ", got[i],
                " want ", want);
    }
    CHECK_EQ(n_wrong, 0);
  }
}

#define ORACLE [](u64 a, u64 b, u64 c)->u64
#define UNUSED static_cast<void>(a), static_cast<void>(b), static_cast<void>(c)

template <class T>
u64 permuted(T a, T b, T selector) {
  u64 result = 0;
  const u64 both = u64{b} << 32 | a;
  for (int i = 0; i < 4; ++i) {
    const u32 nibble = selector >> (i * 4) & 15;
    u64 byte = both >> ((nibble & 7) * 8) & 255;
    if (nibble & 8) byte = (byte >> 7) * 255;
    result |= byte << (i * 8);
  }
  return result;
}

u64 clamped(double value, double low, double high) {
  if (std::isnan(value)) return 0;
  if (value <= low) return static_cast<u64>(static_cast<s64>(low));
  return value >= high ? static_cast<u64>(high) : static_cast<u64>(static_cast<s64>(value));
}

}  // namespace

TEST_CASE("integer arithmetic") {
  check({{"add.s32 %r9, %r1, %r2;", Result::R, ORACLE { UNUSED; return u32(a + b);
}
}
, {"add.u64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return a + b;
}
}
, {"add.u16 %h9, %h1, %h2;", Result::H, ORACLE{UNUSED;
return u16(a + b);
}
}
, {"add.sat.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(std::clamp<s64>(s64{s32(a)} + s32(b), INT32_MIN, INT32_MAX));
}
}
, {"sub.s32 %r9, %r1, 7;", Result::R, ORACLE{UNUSED;
return u32(a - 7);
}
}
, {"sub.s64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return a - b;
}
}
, {"mul.lo.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(a * b);
}
}
, {"mul.hi.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(s64{s32(a)} * s32(b) >> 32);
}
}
, {"mul.hi.u64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return u64((unsigned __int128)a * b >> 64);
}
}
, {"mul.hi.s64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return u64((i128)s64(a) * s64(b) >> 64);
}
}
, {"mul.wide.s32 %rd9, %r1, %r2;", Result::RD, ORACLE{UNUSED;
return u64(s64{s32(a)} * s32(b));
}
}
, {"mul.wide.u16 %r9, %h1, %h2;", Result::R, ORACLE{UNUSED;
return u32(u16(a)) * u16(b);
}
}
, {"mad.lo.s32 %r9, %r1, %r2, %r3;", Result::R, ORACLE{return u32(a * b + c);
}
}
, {"mad.wide.u32 %rd9, %r1, %r2, %rd3;", Result::RD, ORACLE{return u64(u32(a)) * u32(b) + c;
}
}
, {"mad.hi.u32 %r9, %r1, %r2, %r3;", Result::R, ORACLE{return u32((u64(u32(a)) * u32(b) >> 32) + c);
}
}
, {"div.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return s32(b) == 0 ? UINT32_MAX : u32(s64{s32(a)} / s32(b));
}
}
, {"div.u64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return b == 0 ? UINT64_MAX : a / b;
}
}
, {"rem.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return s32(b) == 0 ? u32(a) : u32(s64{s32(a)} % s32(b));
}
}
, {"rem.u32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(b) == 0 ? u32(a) : u32(a) % u32(b);
}
}
, {"min.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(std::min(s32(a), s32(b)));
}
}
, {"max.u32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return std::max(u32(a), u32(b));
}
}
, {"max.s64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return u64(std::max(s64(a), s64(b)));
}
}
, {"neg.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(0 - a);
}
}
, {"abs.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return s32(a) < 0 ? u32(0 - a) : u32(a);
}
}
, {"sad.u32 %r9, %r1, %r2, %r3;", Result::R,
   ORACLE{return u32((u32(a) < u32(b) ? u32(b) - u32(a) : u32(a) - u32(b)) + u32(c));
}
}
, {"add.cc.u32 %r9, %r1, %r2; addc.u32 %r9, %r3, 0;", Result::R,
   ORACLE{return u32(u32(c) + ((u64(u32(a)) + u32(b)) >> 32));
}
}
, {"sub.cc.u32 %r9, %r1, %r2; subc.u32 %r9, %r3, 0;", Result::R,
   ORACLE{return u32(u32(c) - (u32(a) < u32(b)));
}
}
, {
  "mad.lo.cc.u32 %r8, %r1, %r2, %r3; madc.hi.u32 %r9, %r1, %r2, 0;", Result::R, ORACLE {
    return u32((u64(u32(a)) * u32(b) + u32(c)) >> 32);
  }
}
},
        integer_inputs());
}

TEST_CASE("bits") {
  check({{"and.b32 %r9, %r1, %r2;", Result::R, ORACLE { UNUSED; return u32(a & b);
}
}
, {"or.b64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return a | b;
}
}
, {"xor.b16 %h9, %h1, %h2;", Result::H, ORACLE{UNUSED;
return u16(a ^ b);
}
}
, {"not.b32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(~a);
}
}
, {"and.pred %p9, %p1, %p2;", Result::P, ORACLE{return u32(a) != 0 && s32(b) > s32(c);
}
}
, {"not.pred %p9, %p2;", Result::P, ORACLE{UNUSED;
return !(s32(b) > s32(c));
}
}
, {"shl.b32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(b) > 31 ? 0 : u32(a << u32(b));
}
}
, {"shl.b64 %rd9, %rd1, %r2;", Result::RD, ORACLE{UNUSED;
return u32(b) > 63 ? 0 : a << u32(b);
}
}
, {"shr.u32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(b) > 31 ? 0 : u32(a) >> u32(b);
}
}
, {"shr.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(s32(a) >> std::min(u32(b), 31u));
}
}
, {"shr.s64 %rd9, %rd1, %r2;", Result::RD, ORACLE{UNUSED;
return u64(s64(a) >> std::min(u32(b), 63u));
}
}
, {"shf.l.wrap.b32 %r9, %r1, %r2, %r3;", Result::R,
   ORACLE{return u32(((u64(u32(b)) << 32 | u32(a)) << (c & 31)) >> 32);
}
}
, {"shf.r.clamp.b32 %r9, %r1, %r2, %r3;", Result::R,
   ORACLE{return u32((u64(u32(b)) << 32 | u32(a)) >> std::min(u32(c), 32u));
}
}
, {"popc.b32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u64(__builtin_popcount(u32(a)));
}
}
, {"popc.b64 %r9, %rd1;", Result::R, ORACLE{UNUSED;
return u64(__builtin_popcountll(a));
}
}
, {"clz.b32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(a) ? u64(__builtin_clz(u32(a))) : 32;
}
}
, {"clz.b64 %r9, %rd1;", Result::R, ORACLE{UNUSED;
return a ? u64(__builtin_clzll(a)) : 64;
}
}
, {"brev.b32 %r9, %r1;", Result::R, ORACLE{UNUSED;
u32 r = 0;
for (int i = 0; i < 32; ++i) r = r << 1 | (a >> i & 1);
return r;
}
}
, {"bfind.u32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(a) ? u64(31 - __builtin_clz(u32(a))) : UINT32_MAX;
}
}
, {"bfind.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
const u32 x = s32(a) < 0 ? ~u32(a) : u32(a);
return x ? u64(31 - __builtin_clz(x)) : UINT32_MAX;
}
}
, {"bfe.u32 %r9, %r1, 5, 9;", Result::R, ORACLE{UNUSED;
return a >> 5 & 511;
}
}
, {"bfe.s32 %r9, %r1, 5, 9;", Result::R, ORACLE{UNUSED;
return u32(s32(u32(a) << 18) >> 23);
}
}
, {"bfe.u64 %rd9, %rd1, 40, 24;", Result::RD, ORACLE{UNUSED;
return a >> 40;
}
}
, {"bfi.b32 %r9, %r1, %r2, 8, 4;", Result::R, ORACLE{UNUSED;
return u32((b & ~0xf00ull) | (a & 15) << 8);
}
}
, {"lop3.b32 %r9, %r1, %r2, %r3, 0x96;", Result::R, ORACLE{return u32(a ^ b ^ c);
}
}
, {"lop3.b32 %r9, %r1, %r2, %r3, 0xe8;", Result::R, ORACLE{return u32((a & b) | (a & c) | (b & c));
}
}
, {"prmt.b32 %r9, %r1, %r2, %r3;", Result::R, ORACLE{return permuted(u32(a), u32(b), u32(c));
}
}
, {"mov.b64 %rd9, {%r1, %r2};", Result::RD, ORACLE{UNUSED;
return b << 32 | u32(a);
}
}
, {"mov.b32 {%h8, %h9}, %r1;", Result::H, ORACLE{UNUSED;
return u16(a >> 16);
}
}
, {
  "cnot.b32 %r9, %r1;", Result::R, ORACLE {
    UNUSED;
    return u32(a) == 0;
  }
}
},
        integer_inputs());
}

TEST_CASE("comparison and selection") {
  check({{"setp.lt.s32 %p9, %r1, %r2;", Result::P, ORACLE { UNUSED; return s32(a) < s32(b);
}
}
, {"setp.hs.u32 %p9, %r1, %r2;", Result::P, ORACLE{UNUSED;
return u32(a) >= u32(b);
}
}
, {"setp.eq.s64 %p9, %rd1, %rd2;", Result::P, ORACLE{UNUSED;
return a == b;
}
}
, {"setp.gt.and.s16 %p9, %h1, %h2, !%p2;", Result::P,
   ORACLE{return s16(a) > s16(b) && !(s32(b) > s32(c));
}
}
, {"setp.le.or.u32 %p8|%p9, %r1, %r2, %p2;", Result::P,
   ORACLE{return !(u32(a) <= u32(b)) || s32(b) > s32(c);
}
}
, {"set.ne.u32.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(a) != u32(b) ? UINT32_MAX : 0;
}
}
, {"selp.b32 %r9, %r1, %r3, %p2;", Result::R, ORACLE{return s32(b) > s32(c) ? u32(a) : u32(c);
}
}
, {"mov.u32 %r9, %r1; @%p2 mov.u32 %r9, %r3;", Result::R,
   ORACLE{return s32(b) > s32(c) ? u32(c) : u32(a);
}
}
, {
  "slct.s32.s32 %r9, %r1, %r2, %r3;", Result::R, ORACLE { return s32(c) >= 0 ? u32(a) : u32(b); }
}
},
        integer_inputs());
}

TEST_CASE("f32") {
  check({{"add.f32 %f9, %f1, %f2;", Result::F, ORACLE { UNUSED; return ::b(f(a) + f(b));
}
}
, {"sub.rn.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
return ::b(f(a) - f(b));
}
}
, {"mul.f32 %f9, %f1, 0f40490FDB;", Result::F, ORACLE{UNUSED;
return ::b(f(a) * 3.14159274f);
}
}
, {"fma.rn.f32 %f9, %f1, %f2, %f3;", Result::F, ORACLE{return ::b(std::fma(f(a), f(b), f(c)));
}
}
, {"div.rn.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
return ::b(f(a) / f(b));
}
}
, {"sqrt.rn.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
return ::b(std::sqrt(f(a)));
}
}
, {"rcp.rn.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
return ::b(1.0f / f(a));
}
}
, {"neg.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
return u32(a) ^ 0x80000000u;
}
}
, {"abs.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
return u32(a) & 0x7fffffffu;
}
}
, {"min.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
if (f(a) == 0 && f(b) == 0) return u32(a | b);
return ::b(std::fmin(f(a), f(b)));
}
}
, {"max.NaN.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
if (f(a) == 0 && f(b) == 0) return u32(a & b);
return std::isnan(f(a)) || std::isnan(f(b)) ? ::b(NAN) : ::b(std::fmax(f(a), f(b)));
}
}
, {"add.sat.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
const float s = f(a) + f(b);
return ::b(s > 0 ? std::min(s, 1.0f) : 0.0f);
}
}
, {"add.ftz.f32 %f9, %f1, 0f00000000;", Result::F, ORACLE{UNUSED;
const float s = f(a) + 0.0f;
return ::b(std::fabs(s) < 1.17549435e-38f ? 0.0f : s);
}
}
, {"mul.rz.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
const double exact = double{f(a)} * f(b);
float r = float(exact);
if (std::isinf(r) && !std::isinf(exact)) r = std::copysign(std::numeric_limits<float>::max(), r);
if (std::fabs(double{r}) > std::fabs(exact)) r = std::nextafter(r, 0.0f);
return ::b(r);
}
}
, {"copysign.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
return (u32(a) & 0x80000000u) | (u32(b) & 0x7fffffffu);
}
}
, {"setp.lt.f32 %p9, %f1, %f2;", Result::P, ORACLE{UNUSED;
return f(a) < f(b);
}
}
, {"setp.neu.f32 %p9, %f1, %f2;", Result::P, ORACLE{UNUSED;
return f(a) != f(b);
}
}
, {"setp.ne.f32 %p9, %f1, %f2;", Result::P, ORACLE{UNUSED;
return f(a) < f(b) || f(a) > f(b);
}
}
, {"setp.nan.f32 %p9, %f1, %f2;", Result::P, ORACLE{UNUSED;
return std::isnan(f(a)) || std::isnan(f(b));
}
}
, {"testp.subnormal.f32 %p9, %f1;", Result::P, ORACLE{UNUSED;
return (u32(a) & 0x7f800000) == 0 && (u32(a) & 0x7fffff) != 0;
}
}
, {"ex2.approx.f32 %f9, 0f40400000;", Result::F, ORACLE{UNUSED;
return ::b(8.0f);
}
}
, {
  "lg2.approx.f32 %f9, 0f42000000;", Result::F, ORACLE {
    UNUSED;
    return ::b(5.0f);
  }
}
},
        float_inputs());
}

TEST_CASE("f64") {
  check({{"add.f64 %d9, %d1, %d2;", Result::D, ORACLE { UNUSED; return ::b(d(a) + d(b));
}
}
, {"mul.f64 %d9, %d1, %d2;", Result::D, ORACLE{UNUSED;
return ::b(d(a) * d(b));
}
}
, {"fma.rn.f64 %d9, %d1, %d2, %d3;", Result::D, ORACLE{return ::b(std::fma(d(a), d(b), d(c)));
}
}
, {"div.rn.f64 %d9, %d1, %d2;", Result::D, ORACLE{UNUSED;
return ::b(d(a) / d(b));
}
}
, {"sqrt.rn.f64 %d9, %d1;", Result::D, ORACLE{UNUSED;
return ::b(std::sqrt(d(a)));
}
}
, {"cvt.rn.f32.f64 %f9, %d1;", Result::F, ORACLE{UNUSED;
return ::b(static_cast<float>(d(a)));
}
}
, {"cvt.rzi.s64.f64 %rd9, %d1;", Result::RD, ORACLE{UNUSED;
const double v = std::trunc(d(a));
return std::isnan(v) ? 0
       : v >= 0x1p63 ? u64(INT64_MAX)
       : v < -0x1p63 ? u64(INT64_MIN)
                     : u64(s64(v));
}
}
, {"cvt.rni.s32.f64 %r9, %d1;", Result::R, ORACLE{UNUSED;
return u32(clamped(std::nearbyint(d(a)), INT32_MIN, INT32_MAX));
}
}
, {
  "setp.ge.f64 %p9, %d1, %d2;", Result::P, ORACLE {
    UNUSED;
    return d(a) >= d(b);
  }
}
},
        double_inputs());
}

TEST_CASE("conversions") {
  check({{"cvt.s32.s8 %r9, %r1;", Result::R, ORACLE { UNUSED; return u32(s32(int8_t(a)));
}
}
, {"cvt.u32.u8 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u8(a);
}
}
, {"cvt.s64.s32 %rd9, %r1;", Result::RD, ORACLE{UNUSED;
return u64(s64{s32(a)});
}
}
, {"cvt.u64.u32 %rd9, %r1;", Result::RD, ORACLE{UNUSED;
return u32(a);
}
}
, {"cvt.sat.s8.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(std::clamp(s32(a), -128, 127));
}
}
, {"cvt.sat.u8.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(std::clamp(s32(a), 0, 255));
}
}
, {"cvt.rn.f32.s32 %f9, %r1;", Result::F, ORACLE{UNUSED;
return ::b(static_cast<float>(s32(a)));
}
}
, {"cvt.rn.f32.u64 %f9, %rd1;", Result::F, ORACLE{UNUSED;
return ::b(static_cast<float>(a));
}
}
, {
  "cvt.rn.f64.s64 %d9, %rd1;", Result::D, ORACLE {
    UNUSED;
    return ::b(static_cast<double>(s64(a)));
  }
}
},
        integer_inputs());
  check({{"cvt.rzi.s32.f32 %r9, %f1;", Result::R, ORACLE { UNUSED; return u32(clamped(std::trunc(double{f(a)}), INT32_MIN, INT32_MAX));
  }
  }
  , {"cvt.rmi.s32.f32 %r9, %f1;", Result::R, ORACLE{UNUSED;
  return u32(clamped(std::floor(double{f(a)}), INT32_MIN, INT32_MAX));
  }
  }
  , {"cvt.rpi.f32.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
  return ::b(std::ceil(f(a)));
  }
  }
  , {"cvt.rzi.u32.f32 %r9, %f1;", Result::R, ORACLE{UNUSED;
  return u32(clamped(std::trunc(double{f(a)}), 0, UINT32_MAX));
  }
  }
  , {"cvt.f64.f32 %d9, %f1;", Result::D, ORACLE{UNUSED;
  return ::b(double{f(a)});
  }
  }
  , {
    "cvt.rn.bf16.f32 %h9, %f1;", Result::H, ORACLE {
      UNUSED;
      const u32 x = u32(a);
      return std::isnan(f(a)) ? 0x7fff : u16((x + 0x7fff + (x >> 16 & 1)) >> 16);
    }
  }
  },
        float_inputs());
  }

  TEST_CASE("f16 survives the way to f32 and back") {
    std::vector<Input> all;
    for (u64 i = 0; i < 65536; ++i) all.push_back({i, 0, 0});
  check({{"cvt.f32.f16 %f8, %h1; cvt.rn.f16.f32 %h9, %f8;", Result::H,
          ORACLE { UNUSED; return (a & 0x7fff) > 0x7c00 ? 0x7fff : a;
  }
  }
  , {
    "cvt.f32.f16 %f9, %h1;", Result::F, ORACLE {
      UNUSED;
      const int e = int(a >> 10 & 31), m = int(a & 1023);
      const float s = a & 0x8000 ? -1.0f : 1.0f;
      if (e == 31) return ::b(m ? NAN : s * INFINITY);
      return ::b(s * std::ldexp(float(e ? m + 1024 : m), (e ? e : 1) - 25));
    }
  }
  },
        all);
  }
