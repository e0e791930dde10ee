// SPDX-License-Identifier: Apache-2.0
// bench_ring N: N records of a launch's size through a ring, by one thread that writes a batch and
// then reads it. Nothing waits, so that the instructions it takes can be counted.
#include "kvgpu/ring.h"

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "kvgpu/calls.h"
#include "kvgpu/layout.h"

using namespace kvgpu;

namespace {

constexpr int BATCH = 256;
constexpr uint32_t PARAM_BYTES = 64;

struct Shared {
  alignas(64) uint64_t credit;
  alignas(64) std::byte ring[COMMAND_RING_BYTES];
};

int fail(const char* what) {
  std::fprintf(stderr, "bench_ring: %s\n", what);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const long n = argc == 2 ? std::atol(argv[1]) : 0;
  if (n <= 0) return fail("usage: bench_ring N");
  const auto shared = std::make_unique<Shared>();
  Producer producer(shared->ring, sizeof shared->ring, &shared->credit);
  Consumer consumer(shared->ring, sizeof shared->ring, &shared->credit);
  wire::Launch launch{};
  launch.param_bytes = PARAM_BYTES;
  alignas(8) const std::byte params[PARAM_BYTES]{};
  alignas(8) std::byte record[wire::MAX_RECORD_BYTES];
  for (long done = 0; done < n; done += BATCH) {
    for (int i = 0; i < BATCH; ++i) {
      wire::Header header{};
      header.call_id = static_cast<uint64_t>(done + i);
      if (!producer.reserve(sizeof header + sizeof launch + PARAM_BYTES)) return fail("no room");
      producer.write(header, part(launch), Part{params, PARAM_BYTES});
    }
    for (int i = 0; i < BATCH; ++i) {
      wire::Header header;
      if (!consumer.peek(&header)) return fail("no record");
      consumer.take(header, record);
      if (header.call_id != static_cast<uint64_t>(done + i)) return fail("another record");
    }
    consumer.publish();
  }
  return 0;
}
