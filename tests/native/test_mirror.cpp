// SPDX-License-Identifier: Apache-2.0
// Two halves of a mirrored region: what differs is found, carried and nothing else touched.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>

#include "kvgpu/mirror.h"

using namespace kvgpu;
using stream_form::LINE_BYTES;
using stream_form::MAX_RANGES;

namespace {

constexpr uint64_t REGION_BYTES = 16ull << 20;

struct Side {
  Side() : fd(memfd_create("kvgpu-mirror", MFD_CLOEXEC)) {
    REQUIRE(fd >= 0);
    REQUIRE(ftruncate(fd, REGION_BYTES) == 0);
    void* const mapped = mmap(nullptr, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(mapped != MAP_FAILED);
    memory = static_cast<std::byte*>(mapped);
    REQUIRE(mirror.open(memory, fd, REGION_BYTES));
  }
  ~Side() {
    munmap(memory, REGION_BYTES);
    close(fd);
  }

  const int fd;
  std::byte* memory = nullptr;
  Mirror mirror;
};

// Lines that were sent.
size_t carry(Side& from, Side& to, size_t at_a_time = 7) {
  std::array<Mirror::Line, 64> lines;
  size_t n_lines = 0;
  from.mirror.begin_sweep();
  for (size_t n; (n = from.mirror.sweep({lines.data(), at_a_time})) > 0; n_lines += n) {
    for (size_t i = 0; i < n; ++i) {
      REQUIRE(to.mirror.is_shared(lines[i].region_off, LINE_BYTES));
      to.mirror.apply(lines[i]);
    }
  }
  return n_lines;
}

}  // namespace

TEST_CASE("what is shared is carried once, what is not stays where it is") {
  Side a, b;
  for (Side* side : {&a, &b}) {
    REQUIRE(side->mirror.share(4096, 8192));
    REQUIRE(side->mirror.share(MIB, LINE_BYTES));
  }
  std::memset(a.memory, 1, 16384);  // also before and behind the range
  a.memory[MIB + 63] = std::byte{2};
  CHECK(carry(a, b) == 8192 / LINE_BYTES + 1);
  CHECK(std::memcmp(a.memory + 4096, b.memory + 4096, 8192) == 0);
  CHECK(b.memory[MIB + 63] == std::byte{2});
  CHECK(b.memory[4095] == std::byte{0});
  CHECK(b.memory[12288] == std::byte{0});
  CHECK(carry(a, b) == 0);
  CHECK(carry(b, a) == 0);  // what came is known, and does not go back
}

TEST_CASE("bytes of one line that both sides write at once are both kept") {
  Side a, b;
  REQUIRE(a.mirror.share(0, LINE_BYTES));
  REQUIRE(b.mirror.share(0, LINE_BYTES));
  a.memory[3] = std::byte{3};
  b.memory[4] = std::byte{4};
  CHECK(carry(a, b) == 1);
  CHECK(carry(b, a) == 1);
  for (const Side* side : {&a, &b}) {
    CHECK(side->memory[3] == std::byte{3});
    CHECK(side->memory[4] == std::byte{4});
  }
}

TEST_CASE("ranges: lines inside the region that overlap nothing, and not too many") {
  Side a;
  CHECK(a.mirror.is_valid(0, REGION_BYTES));
  CHECK_FALSE(a.mirror.is_valid(1, LINE_BYTES));
  CHECK_FALSE(a.mirror.is_valid(0, LINE_BYTES + 1));
  CHECK_FALSE(a.mirror.is_valid(REGION_BYTES, LINE_BYTES));
  CHECK_FALSE(a.mirror.is_valid(~0ull - LINE_BYTES + 1, 2 * LINE_BYTES));
  REQUIRE(a.mirror.share(4096, 4096));
  CHECK_FALSE(a.mirror.share(4096, LINE_BYTES));
  CHECK_FALSE(a.mirror.share(8128, 2 * LINE_BYTES));
  CHECK_FALSE(a.mirror.share(0, 4096 + LINE_BYTES));
  CHECK_FALSE(a.mirror.share(0, 0));
  CHECK(a.mirror.is_shared(8128, LINE_BYTES));
  CHECK_FALSE(a.mirror.is_shared(8128, 2 * LINE_BYTES));
  CHECK_FALSE(a.mirror.unshare(4160));
  CHECK(a.mirror.unshare(4096));
  CHECK_FALSE(a.mirror.any_shared());
  for (uint64_t i = 0; i < MAX_RANGES; ++i) REQUIRE(a.mirror.share(2 * i * LINE_BYTES, LINE_BYTES));
  CHECK_FALSE(a.mirror.share(2 * MAX_RANGES * LINE_BYTES, LINE_BYTES));
}

TEST_CASE("what an earlier owner left is forgotten, not carried") {
  Side a, b;
  a.memory[100] = std::byte{1};
  REQUIRE(a.mirror.share(0, 4096));
  REQUIRE(b.mirror.share(0, 4096));
  a.mirror.settle(0, 4096);
  CHECK(a.memory[100] == std::byte{0});
  CHECK(carry(a, b) == 0);
}

TEST_CASE("random writes of both sides arrive") {
  Side a, b;
  std::minstd_rand random;
  for (Side* side : {&a, &b}) {
    for (uint64_t i = 0; i < 8; ++i) REQUIRE(side->mirror.share(i * MIB, 3 * 4096 + LINE_BYTES));
  }
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 50; ++i) {
      const uint64_t at = random() % 8 * MIB + random() % (3 * 4096 + LINE_BYTES);
      ((i + round) % 2 ? a : b).memory[at] = static_cast<std::byte>(random());
    }
    const size_t at_a_time = 1 + random() % 60;
    carry(a, b, at_a_time);
    carry(b, a, at_a_time);
    REQUIRE(std::memcmp(a.memory, b.memory, REGION_BYTES) == 0);
  }
}
