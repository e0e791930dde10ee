// SPDX-License-Identifier: Apache-2.0
// How threads of a block and of a grid work together: divergence, barriers, warps, locks, calls.
#include <numeric>

#include "software_gpu_test.h"

using namespace software_gpu_test;

namespace {

std::vector<uint32_t> run(const std::string& ptx, unsigned grid, unsigned block, size_t n_out) {
  Gpu gpu;
  Buffer<uint32_t> out(std::vector<uint32_t>(n_out, 0));
  CU(gpu.launch(gpu.kernel(ptx), grid, block, nullptr, out.pointer));
  CU(cuCtxSynchronize());
  return out.read();
}

/// A kernel with one pointer parameter; %r1 is the thread, %rd1 the pointer, %rd2 its own word.
std::string kernel(const std::string& body, const std::string& before = "") {
  return before + R"(
.visible .entry k(.param .u64 out) {
  .reg .b64 %rd<20>; .reg .b32 %r<30>; .reg .pred %p<9>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd2, %rd1, %rd2;
)" + body +
         "}";
}

}  // namespace

TEST_CASE("threads that diverge meet again") {
  const auto out = run(kernel(R"(
    mov.u32 %r2, 0;
    and.b32 %r3, %r1, 7;
  LOOP:
    setp.ge.u32 %p1, %r2, %r3;
    @%p1 bra DONE;
    add.u32 %r2, %r2, 1;
    bra LOOP;
  DONE:
    activemask.b32 %r4;
    popc.b32 %r4, %r4;
    shl.b32 %r4, %r4, 8;
    or.b32 %r2, %r2, %r4;
    st.global.u32 [%rd2], %r2;
    ret;)"),
                       1, 64, 64);
  for (uint32_t i = 0; i < 64; ++i) CHECK_EQ(out[i], (32u << 8 | (i & 7)));
}

TEST_CASE("a barrier orders shared memory") {
  const auto out = run(kernel(R"(
    .shared .align 4 .b8 s[1024];
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, s;
    add.u32 %r4, %r3, %r2;
    st.shared.u32 [%r4], %r1;
    bar.sync 0;
    xor.b32 %r5, %r2, 1020;
    add.u32 %r5, %r3, %r5;
    ld.shared.u32 %r6, [%r5];
    st.global.u32 [%rd2], %r6;
    ret;)"),
                       1, 256, 256);
  for (uint32_t i = 0; i < 256; ++i) CHECK_EQ(out[i], 255 - i);
}

TEST_CASE("barrier reductions count all threads") {
  const auto out = run(kernel(R"(
    setp.lt.u32 %p1, %r1, 40;
    bar.red.popc.u32 %r2, 0, %p1;
    st.global.u32 [%rd2], %r2;
    ret;)"),
                       1, 96, 96);
  for (const uint32_t value : out) CHECK_EQ(value, 40);
}

TEST_CASE("threads that ended do not hold up a barrier") {
  const auto out = run(kernel(R"(
    setp.ge.u32 %p1, %r1, 50;
    @%p1 ret;
    bar.sync 0;
    st.global.u32 [%rd2], 1;
    ret;)"),
                       1, 64, 64);
  CHECK_EQ(std::accumulate(out.begin(), out.end(), 0u), 50);
}

TEST_CASE("shuffles, votes and matches") {
  const auto out = run(kernel(R"(
    shfl.sync.down.b32 %r2|%p1, %r1, 4, 31, -1;
    shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;
    shfl.sync.idx.b32 %r4, %r1, 3, 0x181f, -1;
    shfl.sync.up.b32 %r5|%p3, %r1, 2, 0, -1;
    setp.gt.u32 %p2, %r1, 9;
    vote.sync.ballot.b32 %r6, %p2, -1;
    shr.u32 %r7, %r1, 3;
    match.any.sync.b32 %r8, %r7, -1;
    redux.sync.add.u32 %r9, %r1, -1;
    selp.u32 %r10, 1, 0, %p1;
    selp.u32 %r11, 1, 0, %p3;
    mul.wide.u32 %rd3, %r1, 32;
    add.s64 %rd3, %rd1, %rd3;
    st.global.v4.u32 [%rd3], {%r2, %r3, %r4, %r5};
    st.global.v4.u32 [%rd3+16], {%r6, %r8, %r9, %r10};
    ret;)"),
                       1, 32, 256);
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t* o = &out[i * 8];
    CHECK_EQ(o[0], (i + 4 < 32 ? i + 4 : i));
    CHECK_EQ(o[1], (i ^ 1));
    CHECK_EQ(o[2], ((i & 24) | 3));
    CHECK_EQ(o[3], (i >= 2 ? i - 2 : i));
    CHECK_EQ(o[4], 0xfffffc00u);
    CHECK_EQ(o[5], 0xffu << (i & 24));
    CHECK_EQ(o[6], 496);
    CHECK_EQ(o[7], (i + 4 < 32));
  }
}

TEST_CASE("a spin lock by compare-and-swap ends") {
  // Every thread spins for the lock; its holder stands further down when the others spin.
  const auto out = run(kernel(R"(
  SPIN:
    atom.global.cas.b32 %r2, [%rd1], 0, 1;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra SPIN;
    ld.global.u32 %r3, [%rd1+4];
    add.u32 %r3, %r3, 1;
    st.global.u32 [%rd1+4], %r3;
    membar.gl;
    atom.global.exch.b32 %r4, [%rd1], 0;
    ret;)"),
                       4, 64, 2);
  CHECK_EQ(out[1], 256);
}

TEST_CASE("blocks that wait for a later block make progress") {
  const auto out = run(kernel(R"(
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %nctaid.x;
    add.u32 %r4, %r2, 1;
    setp.ne.u32 %p1, %r4, %r3;
    @%p1 bra WAIT;
    st.global.u32 [%rd1], 1;
    bra END;
  WAIT:
    ld.volatile.global.u32 %r5, [%rd1];
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra WAIT;
  END:
    atom.global.add.u32 %r6, [%rd1+4], 1;
    ret;)"),
                       20, 32, 2);
  CHECK_EQ(out[1], 640);
}

TEST_CASE("functions: arguments, results, recursion, local memory") {
  const auto out = run(kernel(R"(
    {
    .param .b32 p0; .param .b32 r0;
    st.param.b32 [p0+0], %r1;
    call.uni (r0), fibonacci, (p0);
    ld.param.b32 %r2, [r0+0];
    }
    st.global.u32 [%rd2], %r2;
    ret;)",
                              R"(
.func (.param .b32 result) fibonacci(.param .b32 n) {
  .local .align 8 .b8 frame[16];
  .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<2>;
  ld.param.u32 %r1, [n];
  mov.u64 %rd1, frame;
  cvta.local.u64 %rd2, %rd1;
  st.u32 [%rd2+4], %r1;
  setp.lt.u32 %p1, %r1, 2;
  mov.u32 %r4, %r1;
  @%p1 bra OUT;
  sub.u32 %r2, %r1, 1;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call (b), fibonacci, (a); ld.param.b32 %r3, [b]; }
  ld.local.u32 %r5, [%rd1+4];
  sub.u32 %r5, %r5, 2;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r5; call (b), fibonacci, (a); ld.param.b32 %r4, [b]; }
  add.u32 %r4, %r3, %r4;
OUT:
  st.param.b32 [result], %r4;
  ret;
})"),
                       1, 10, 10);
  CHECK_EQ(out, std::vector<uint32_t>{0, 1, 1, 2, 3, 5, 8, 13, 21, 34});
}

TEST_CASE("indirect calls and jump tables") {
  const auto out = run(kernel(R"(
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p1, %r2, 0;
    mov.u64 %rd3, twice;
    mov.u64 %rd4, thrice;
    selp.b64 %rd5, %rd3, %rd4, %p1;
    {
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r1;
  proto: .callprototype (.param .b32 _) _ (.param .b32 _);
    call (b), %rd5, (a), proto;
    ld.param.b32 %r3, [b];
    }
    rem.u32 %r4, %r1, 3;
  table: .branchtargets A, B, C;
    brx.idx %r4, table;
  A: add.u32 %r3, %r3, 100; bra DONE;
  B: add.u32 %r3, %r3, 200; bra DONE;
  C: add.u32 %r3, %r3, 300;
  DONE:
    st.global.u32 [%rd2], %r3;
    ret;)",
                              R"(
.func (.param .b32 r) twice(.param .b32 n) {
  .reg .b32 %r<3>; ld.param.u32 %r1, [n]; shl.b32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) thrice(.param .b32 n) {
  .reg .b32 %r<3>; ld.param.u32 %r1, [n]; mul.lo.u32 %r1, %r1, 3; st.param.b32 [r], %r1; ret; })"),
                       1, 40, 40);
  for (uint32_t i = 0; i < 40; ++i) CHECK_EQ(out[i], i * (i % 2 ? 3 : 2) + 100 * (i % 3 + 1));
}

TEST_CASE("atomics from all blocks add up") {
  const auto out = run(kernel(R"(
    .reg .f32 %f<3>; .reg .f64 %d<3>;
    atom.global.add.u32 %r2, [%rd1], 1;
    red.global.max.s32 [%rd1+4], %r1;
    atom.global.inc.u32 %r3, [%rd1+8], 9;
    red.global.or.b32 [%rd1+12], %r1;
    atom.global.add.f32 %f1, [%rd1+16], 0f3F000000;
    red.global.add.u64 [%rd1+24], 3;
    ret;)"),
                       10, 128, 8);
  CHECK_EQ(out[0], 1280);
  CHECK_EQ(out[1], 127);
  CHECK_EQ(out[2], 0);
  CHECK_EQ(out[3], 127);
  CHECK_EQ(out[4], 0x44200000u);  // 640.0f
  CHECK_EQ(out[6], 3840);
}

TEST_CASE("variables: global, constant, initialisers and dynamic shared memory") {
  Gpu gpu;
  CUmodule module;
  CUfunction function;
  const std::string text = HEADER + kernel(R"(
    ld.const.u32 %r2, [table+4];
    ld.global.u64 %rd3, [pointer];
    ld.global.u32 %r3, [%rd3];
    add.u32 %r2, %r2, %r3;
    mov.u32 %r4, dynamic;
    shl.b32 %r5, %r1, 2;
    add.u32 %r4, %r4, %r5;
    st.shared.u32 [%r4], %r2;
    ld.shared.u32 %r6, [%r4];
    st.global.u32 [%rd2], %r6;
    ret;)",
                                           R"(
.const .align 4 .u32 table[3] = {10, 20, 30};
.visible .global .align 4 .u32 value = 5;
.global .align 8 .u64 pointer = generic(value);
.extern .shared .align 16 .b8 dynamic[];)");
  CU(cuModuleLoadData(&module, text.c_str()));
  CU(cuModuleGetFunction(&function, module, "k"));
  CUdeviceptr value;
  size_t n_bytes;
  CU(cuModuleGetGlobal(&value, &n_bytes, module, "value"));
  CHECK_EQ(n_bytes, 4);
  Buffer<uint32_t> out(std::vector<uint32_t>(8));
  void* arguments[] = {&out.pointer};
  CU(cuLaunchKernel(function, 1, 1, 1, 8, 1, 1, 32, nullptr, arguments, nullptr));
  CHECK_EQ(out.read(), std::vector<uint32_t>(8, 25));
  CU(cuMemsetD32(value, 7, 1));
  CU(cuLaunchKernel(function, 1, 1, 1, 8, 1, 1, 32, nullptr, arguments, nullptr));
  CHECK_EQ(out.read(), std::vector<uint32_t>(8, 27));
  CHECK_EQ(cuModuleGetGlobal(&value, &n_bytes, module, "missing"), CUDA_ERROR_NOT_FOUND);
  CU(cuModuleUnload(module));
}

TEST_CASE("a cooperative grid synchronises") {
  Gpu gpu;
  // Every block announces itself and waits for all: only possible when all are resident.
  const CUfunction function = gpu.kernel(kernel(R"(
    mov.u32 %r3, %nctaid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra JOIN;
    atom.global.add.u32 %r2, [%rd1], 1;
  WAIT:
    ld.acquire.gpu.global.u32 %r4, [%rd1];
    setp.lt.u32 %p2, %r4, %r3;
    @%p2 bra WAIT;
  JOIN:
    bar.sync 0;
    atom.global.add.u32 %r5, [%rd1+4], 1;
    ret;)"));
  Buffer<uint32_t> out({0, 0});
  int n_sms = 0, n_blocks = 0;
  CU(cuDeviceGetAttribute(&n_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n_blocks, function, 64, 0));
  const unsigned grid = static_cast<unsigned>(n_sms * n_blocks);
  void* arguments[] = {&out.pointer};
  CU(cuLaunchCooperativeKernel(function, grid, 1, 1, 64, 1, 1, 0, nullptr, arguments));
  CHECK_EQ(out.read(), std::vector<uint32_t>{grid, grid * 64});
  CHECK_EQ(cuLaunchCooperativeKernel(function, grid + 1, 1, 1, 64, 1, 1, 0, nullptr, arguments),
           CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

// What operations compute is tested in tests/software_gpu; here they run under the sanitizers.
TEST_CASE("operations on extreme operands do nothing that C++ leaves undefined") {
  std::string code;
  for (const char* type : {"s16", "u16", "s32", "u32", "s64", "u64"}) {
    const std::string t = type, r = t.ends_with("16") ? "%h" : t.ends_with("32") ? "%r" : "%rd";
    for (const char* name : {"add", "sub", "mul.lo", "mul.hi", "div", "rem", "min"})
      code += std::string(name) + "." + t + " " + r + "9, " + r + "1, " + r + "2;\n";
    for (const char* name : {"mad.lo", "mad.hi", "sad"})
      code += std::string(name) + "." + t + " " + r + "9, " + r + "1, " + r + "2, " + r + "1;\n";
    code += "shr." + t + " " + r + "9, " + r + "1, %r2;\n";
    for (const char* to : {"f16 %h9", "f32 %r9", "f64 %rd9"})
      code += std::string("cvt.rm.") + std::string(to, 3) + "." + t + " " + (to + 4) + ", " + r +
              "1;\n";
    for (const char* from : {"f16 %h1", "f32 %r1", "f64 %rd1"})
      code += "cvt.rpi." + t + "." + std::string(from, 3) + " " + r + "9, " + (from + 4) + ";\n";
  }
  for (const std::string t : {"s32", "u32", "s64", "u64"}) {
    const std::string r = t.ends_with("32") ? "%r" : "%rd";
    code += "bfe." + t + " " + r + "9, " + r + "1, %r2, %r1;\n";
    code += "bfind." + t + " %r9, " + r + "1;\n";
    code += "shl.b" + t.substr(1) + " " + r + "9, " + r + "1, %r2;\n";
    code += "bfi.b" + t.substr(1) + " " + r + "9, " + r + "1, " + r + "2, %r2, %r1;\n";
  }
  code += R"(
    shf.l.clamp.b32 %r9, %r1, %r2, %r1; shf.r.wrap.b32 %r9, %r1, %r2, %r1;
    bmsk.clamp.b32 %r9, %r1, %r2; bmsk.wrap.b32 %r9, %r1, %r2; fns.b32 %r9, %r1, %r2, %r1;
    szext.clamp.s32 %r9, %r1, %r2; szext.wrap.s32 %r9, %r1, %r2; prmt.b32 %r9, %r1, %r2, %r1;
    mul24.hi.s32 %r9, %r1, %r2; mad24.hi.sat.s32 %r9, %r1, %r2, %r1; dp4a.s32.u32 %r9, %r1, %r2, %r1;
    neg.s32 %r9, %r1; abs.s64 %rd9, %rd1; mul.wide.s32 %rd9, %r1, %r2;
    fma.rz.f32 %r9, %r1, %r2, %r1; div.rp.f64 %rd9, %rd1, %rd2; sqrt.rm.ftz.f32 %r9, %r1;
    fma.rn.bf16x2 %r9, %r1, %r2, %r1; fma.rn.ftz.sat.f16 %h9, %h1, %h2, %h1;
    cvt.rz.bf16x2.f32 %r9, %r1, %r2; cvt.rp.f16.f64 %h9, %rd1; cvt.rn.ftz.f32.f64 %r9, %rd1;
    add.cc.u64 %rd9, %rd1, %rd2; madc.hi.cc.s32 %r9, %r1, %r2, %r1; lop3.b32 %r9, %r1, %r2, %r1, 0x96;
    shfl.sync.up.b32 %r9|%p1, %r1, %r2, %r1, -1; redux.sync.add.s32 %r9, %r1, -1;
)";
  const std::vector<uint64_t> edges = {0,          1,
                                       31,         32,
                                       255,        0x8000,
                                       0xffff,     0x7c00,
                                       0x7fffffff, 0x80000000,
                                       0xffffffff, 0x7f800000,
                                       INT64_MAX,  uint64_t{1} << 63,
                                       UINT64_MAX, 0x7ff0000000000000};
  Gpu gpu;
  const Buffer<uint64_t> values(edges);
  CU(gpu.launch(gpu.kernel(kernel(R"(
    .reg .b16 %h<10>;
    and.b32 %r3, %r1, 15; mul.wide.u32 %rd3, %r3, 8; add.u64 %rd3, %rd1, %rd3;
    shr.u32 %r4, %r1, 4; mul.wide.u32 %rd4, %r4, 8; add.u64 %rd4, %rd1, %rd4;
    ld.global.u64 %rd1, [%rd3]; ld.global.u64 %rd2, [%rd4];
    cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2; cvt.u16.u64 %h1, %rd1; cvt.u16.u64 %h2, %rd2;
)" + code)),
                1, 256, nullptr, values.pointer));
  CU(cuCtxSynchronize());
}
