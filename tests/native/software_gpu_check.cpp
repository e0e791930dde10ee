// SPDX-License-Identifier: Apache-2.0
// The software GPU's check mode, on PTX: which accesses are in order, and what is said of the
// others.
#define DOCTEST_CONFIG_IMPLEMENT
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "software_gpu_test.h"

using namespace software_gpu_test;

namespace {

/// What `run` leads to on standard error.
std::string said(const std::function<void()>& run) {
  char path[] = "/tmp/software_gpu_check.XXXXXX";
  const int file = mkstemp(path), old = dup(2);
  REQUIRE(file >= 0);
  unlink(path);
  dup2(file, 2);
  run();
  dup2(old, 2);
  close(old);
  std::string text(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
  CHECK_EQ(pread(file, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  close(file);
  return text;
}

/// Of a kernel with 64 words of shared memory: %r1 is the thread, %r2 its word, %r3 that of thread
/// `t ^ 32`, of the other warp, %r4 that of `t ^ 1`.
std::string check(const std::string& name, const std::string& body) {
  return said([&] {
    Gpu gpu;
    const std::string ptx = ".visible .entry " + name + R"(() {
  .reg .b32 %r<20>; .reg .pred %p<5>;
  .shared .align 4 .b8 s[256];
  mov.u32 %r1, %tid.x; mov.u32 %r9, s;
  shl.b32 %r2, %r1, 2;
  xor.b32 %r3, %r2, 128; xor.b32 %r4, %r2, 4;
  add.u32 %r2, %r2, %r9; add.u32 %r3, %r3, %r9; add.u32 %r4, %r4, %r9;
)" + body + "\nret;\n}\n.file 7 \"source.cu\"\n";
    CU(gpu.launch(gpu.kernel(ptx, name.c_str()), 1, 64, nullptr));
    static_cast<void>(cuCtxSynchronize());
  });
}

size_t n_lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

const std::string WRITE = "st.shared.u32 [%r2], %r1;\n", READ_WARP = "ld.shared.u32 %r5, [%r4];\n",
                  READ_OTHER = ".loc 7 42 3\nld.shared.u32 %r5, [%r3];\n";

}  // namespace

TEST_CASE("a race is reported once, with source, block and threads") {
  const std::string text = check("racing", WRITE + READ_OTHER);
  CHECK_EQ(text,
           "kvgpu software GPU check: race: kernel racing, source.cu:42, block (0,0,0), thread "
           "(0,0,0): reads 4 bytes at shared offset 128 that thread (32,0,0) wrote at PTX line 11 "
           "of racing, with no barrier between\n"
           "kvgpu software GPU check: kernel racing found 64 times racing, 0 times reading "
           "uninitialised memory, 0 times out of bounds\n");
  CHECK_EQ(check("racing", WRITE + READ_OTHER), "");  // it is known
}

TEST_CASE("barriers order what they are for") {
  CHECK_EQ(check("synced", WRITE + "bar.sync 0;\n" + READ_OTHER), "");
  CHECK_EQ(check("warps", WRITE + "bar.warp.sync -1;\n" + READ_WARP), "");
  CHECK_EQ(check("shuffled", WRITE + "shfl.sync.idx.b32 %r6, %r1, 0, 31, -1;\n" + READ_WARP), "");
  CHECK_EQ(n_lines(check("only_warps", WRITE + "bar.warp.sync -1;\n" + READ_OTHER)), 2);
  CHECK_EQ(check("other_id", WRITE + "bar.sync 1, 64;\n" + READ_OTHER), "");
}

TEST_CASE("a barrier of some threads orders these") {
  const std::string first_warp = "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra OVER;\n";
  CHECK_EQ(check("some", first_warp + WRITE + "bar.sync 1, 32;\n" + READ_WARP + "OVER:\n"), "");
  // Who only arrives is heard of, and hears of nobody.
  const std::string arrive =
      "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra TAKER;\n" + WRITE + "bar.arrive 1, 64;\n";
  const std::string take = "bra.uni OVER;\nTAKER:\nbar.sync 1, 64;\n" + READ_OTHER + "OVER:\n";
  CHECK_EQ(check("handed", arrive + take), "");
  CHECK_EQ(n_lines(check("too_late", arrive + "st.shared.u32 [%r2], 7;\n" + take)), 2);
}

TEST_CASE("an overwritten word that others still read is a race, whoever read it last") {
  const std::string read = WRITE + "bar.sync 0;\nld.shared.u32 %r5, [s+252];\n";
  const std::string last =
      "setp.ne.u32 %p1, %r1, 63;\n@%p1 bra OVER;\nst.shared.u32 [s+252], 5;\nOVER:\n";
  CHECK_EQ(n_lines(check("overwriting", read + last)), 2);
  CHECK_EQ(check("overwriting_later", read + "bar.sync 0;\n" + last), "");
}

TEST_CASE(
    "atomics and volatile accesses do not race among themselves; the same value does no harm") {
  const std::string zero = "st.shared.u32 [s], 0;\nbar.sync 0;\n";
  CHECK_EQ(check("atomics", zero + "atom.shared.add.u32 %r5, [s], 1;\n"), "");
  CHECK_EQ(check("volatiles",
                 zero + "st.volatile.shared.u32 [s], %r1;\nld.volatile.shared.u32 %r5, [s];\n"),
           "");
  CHECK_EQ(
      n_lines(check("mixed", zero + "atom.shared.add.u32 %r5, [s], 1;\nld.shared.u32 %r6, [s];\n")),
      2);
  CHECK_EQ(check("same", zero + "st.shared.u32 [s], 9;\n"), "");
  CHECK_EQ(n_lines(check("different", zero + "st.shared.u32 [s], %r1;\n")), 2);
}

TEST_CASE("a fence and an atomic hand on what was before them") {
  const auto give = [](const std::string& fence) {
    return "st.shared.u32 [s], 0;\nbar.sync 0;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra TAKER;\n"
           "st.shared.u32 [s+8], 7;\n" +
           fence +
           "atom.shared.exch.b32 %r5, [s], 1;\nbra.uni OVER;\nTAKER:\n"
           "setp.ne.u32 %p1, %r1, 40;\n@%p1 bra OVER;\nAGAIN:\natom.shared.or.b32 %r5, [s], 0;\n"
           "setp.eq.u32 %p1, %r5, 0;\n@%p1 bra AGAIN;\n"
           "ld.shared.u32 %r6, [s+8];\nOVER:\n";
  };
  CHECK_EQ(check("fenced", give("membar.cta;\n")), "");
  CHECK_EQ(n_lines(check("unfenced", give(""))), 2);
}

TEST_CASE("shared memory that nothing has written in this block") {
  const std::string text = check("unwritten", READ_WARP);
  CHECK_MESSAGE(
      text.find("uninitialised read: kernel unwritten, PTX line 11 of unwritten, block "
                "(0,0,0), thread (0,0,0): reads 4 bytes at shared offset 4") != std::string::npos,
      text);
  CHECK_EQ(check("written", WRITE + "ld.shared.u32 %r5, [%r2];\n"), "");
}

TEST_CASE("out of bounds: named in check mode, and a fault as ever") {
  const std::string text = check("beyond", "st.shared.u32 [s+256], 1;\n");
  CHECK_MESSAGE(
      text.find("out of bounds: kernel beyond, PTX line 11 of beyond, block (0,0,0), thread "
                "(0,0,0): writes 4 bytes at shared offset 256 of 256 bytes\n") != std::string::npos,
      text);
  CHECK_MESSAGE(
      text.find("kvgpu software GPU: kernel beyond: shared address 256 of 256 bytes, thread "
                "(0,0,0) of block (0,0,0), PTX line 11 of beyond\n") != std::string::npos,
      text);
}

int main(int argc, char** argv) {
  setenv("KVGPU_SOFTWARE_GPU_CHECK", "1", 1);
  return doctest::Context(argc, argv).run();
}
