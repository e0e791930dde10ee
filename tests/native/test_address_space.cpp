// SPDX-License-Identifier: Apache-2.0
// Device addresses outside of what the guest's library reserves at its start stay free for the
// driver, or are refused.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include "address_space.h"

using namespace kvgpu::guest;

namespace {

constexpr uint64_t MIB = 1ull << 20;

bool is_free(uint64_t address, uint64_t len_bytes) {
  auto* const wanted = reinterpret_cast<void*>(address);
  void* const got = mmap(wanted, len_bytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got != MAP_FAILED) munmap(got, len_bytes);
  return got == wanted;
}

// Where nothing is, at a multiple of 64 MiB.
uint64_t free_place() {
  constexpr uint64_t BYTES = 128 * MIB;
  void* const found =
      mmap(nullptr, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(found != MAP_FAILED);
  munmap(found, BYTES);
  return (reinterpret_cast<uint64_t>(found) + 64 * MIB - 1) & ~(64 * MIB - 1);
}

}  // namespace

TEST_CASE("addresses of memory that the driver puts elsewhere are kept") {
  const uint64_t place = free_place();
  CHECK(!is_reserved_for_devices(place, 256));
  REQUIRE(keep_for_devices(place + 3 * MIB, 256));
  CHECK(is_reserved_for_devices(place + 3 * MIB, 256));
  CHECK(!is_free(place + 2 * MIB, 2 * MIB));
  CHECK(is_free(place + 4 * MIB, MIB));

  REQUIRE(keep_for_devices(place, 8 * MIB));  // some of it is kept already
  CHECK(keep_for_devices(place, 8 * MIB));
  CHECK(!is_free(place + 7 * MIB, MIB));

  // The driver has them back, and gives them to who reserves addresses.
  REQUIRE(reserve_for_devices(place, 16 * MIB));
  CHECK(!is_free(place + 12 * MIB, MIB));
  unreserve_for_devices(place, 16 * MIB);
  CHECK(is_free(place + 12 * MIB, MIB));
  CHECK(!is_free(place + 7 * MIB, MIB));
}

TEST_CASE("addresses at which the program has something are refused and left to it") {
  const uint64_t place = free_place();
  auto* const own = reinterpret_cast<unsigned char*>(place + 4 * MIB);
  REQUIRE(mmap(own, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
               -1, 0) == own);
  own[0] = 7;
  CHECK(!keep_for_devices(place, 8 * MIB));
  CHECK(!is_reserved_for_devices(place, 256));
  CHECK(is_free(place, 4 * MIB));
  CHECK(own[0] == 7);
  munmap(own, MIB);
}
