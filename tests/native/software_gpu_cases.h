// SPDX-License-Identifier: Apache-2.0
// For tests of single operations: one line of PTX, run on many inputs, against a scalar oracle that
// is written independently of the interpreter.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "software_gpu_test.h"

namespace software_gpu_test {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using i128 = __int128;

inline float f(u64 bits) { return std::bit_cast<float>(static_cast<u32>(bits)); }
inline double d(u64 bits) { return std::bit_cast<double>(bits); }
inline u64 b(float value) { return std::bit_cast<u32>(value); }
inline u64 b(double value) { return std::bit_cast<u64>(value); }

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

inline std::string program(const Case& test) {
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

inline std::vector<Input> integer_inputs() {
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

inline std::vector<Input> float_inputs() {
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

inline std::vector<Input> double_inputs() {
  std::vector<Input> inputs = float_inputs();
  for (Input& input : inputs)
    input = {b(double{f(input.a)} * 1.0000001), b(double{f(input.b)}), b(double{f(input.c)} / 3)};
  return inputs;
}

inline bool is_nan(u64 bits, Result result) {
  return result == Result::F ? std::isnan(f(bits)) : result == Result::D && std::isnan(d(bits));
}

inline void check(const std::vector<Case>& cases, std::vector<Input> inputs) {
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

inline u64 clamped(double value, double low, double high) {
  if (std::isnan(value)) return 0;
  if (value <= low) return static_cast<u64>(static_cast<s64>(low));
  return value >= high ? static_cast<u64>(high) : static_cast<u64>(static_cast<s64>(value));
}

}  // namespace software_gpu_test
