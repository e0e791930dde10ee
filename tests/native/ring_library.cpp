// SPDX-License-Identifier: Apache-2.0
// Both ends of a ring behind a C interface, for tests/unit/test_ring_properties.py. The ring's
// bytes and its credit word are given out too: a hostile peer writes there what it likes.
#include <cstdint>
#include <memory>

#include "kvgpu/ring.h"

using namespace kvgpu;

namespace {

struct Ring {
  explicit Ring(uint64_t ring_bytes)
      : lines(new Line[ring_bytes / sizeof(Line)]()),
        producer(reinterpret_cast<std::byte*>(lines.get()), ring_bytes, &credit),
        consumer(reinterpret_cast<std::byte*>(lines.get()), ring_bytes, &credit) {}

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::unique_ptr<Line[]> lines;
  uint64_t credit = 0;
  Producer producer;
  Consumer consumer;
  wire::Header peeked{};
};

// 1: done. 0: not now. Negative: the RingError.
int answer(bool done, RingError error) { return done ? 1 : -static_cast<int>(error); }

}  // namespace

extern "C" {

#define KVGPU_TEST_API __attribute__((visibility("default")))

KVGPU_TEST_API Ring* ring_new(uint64_t ring_bytes) { return new Ring(ring_bytes); }
KVGPU_TEST_API void ring_free(Ring* ring) { delete ring; }
KVGPU_TEST_API void* ring_bytes(Ring* ring) { return ring->lines.get(); }
KVGPU_TEST_API uint64_t* ring_credit(Ring* ring) { return &ring->credit; }
KVGPU_TEST_API uint64_t ring_sent(Ring* ring) { return ring->producer.position(); }
KVGPU_TEST_API uint64_t ring_taken(Ring* ring) { return ring->consumer.position(); }
KVGPU_TEST_API void ring_publish(Ring* ring) { ring->consumer.publish(); }

KVGPU_TEST_API int ring_send(Ring* ring, uint16_t opcode, uint64_t call_id, const void* body,
                             uint32_t len_bytes) {
  const bool room = ring->producer.reserve(sizeof(wire::Header) + len_bytes);
  if (room) {
    wire::Header header{};
    header.opcode = opcode;
    header.call_id = call_id;
    ring->producer.write(header, Part{body, len_bytes});
  }
  return answer(room, ring->producer.error());
}

KVGPU_TEST_API int ring_peek(Ring* ring, wire::Header* header) {
  const bool found = ring->consumer.peek(&ring->peeked);
  *header = ring->peeked;
  return answer(found, ring->consumer.error());
}

// The record that was peeked last; `to` has room for the longest.
KVGPU_TEST_API void ring_take(Ring* ring, void* to) { ring->consumer.take(ring->peeked, to); }

}  // extern "C"
