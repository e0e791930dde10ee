// SPDX-License-Identifier: Apache-2.0
// The ring, with an honest peer and with one that lies. Both ends in one process.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kvgpu/records.h"
#include "kvgpu/ring.h"

using namespace kvgpu;

namespace {

constexpr uint64_t RING_BYTES = 64 * 1024;

struct Pair {
  alignas(64) std::array<std::byte, RING_BYTES> bytes{};
  uint64_t credit = 0;
  Producer producer{bytes.data(), RING_BYTES, &credit};
  Consumer consumer{bytes.data(), RING_BYTES, &credit};

  wire::Header* header_at(uint64_t position) {
    return reinterpret_cast<wire::Header*>(bytes.data() + (position & (RING_BYTES - 1)));
  }
};

wire::Header header(uint16_t opcode, uint64_t call_id = 0) {
  wire::Header h{};
  h.opcode = opcode;
  h.call_id = call_id;
  return h;
}

bool send(Pair& pair, uint16_t opcode, const std::vector<uint8_t>& body) {
  const auto len = static_cast<uint32_t>(body.size());
  if (!pair.producer.reserve(sizeof(wire::Header) + len)) return false;
  static const uint8_t NOTHING = 0;
  pair.producer.write(header(opcode), Part{len ? body.data() : &NOTHING, len});
  return true;
}

std::vector<uint8_t> body_of(const std::vector<uint64_t>& record, const wire::Header& h) {
  const auto* begin = reinterpret_cast<const uint8_t*>(record.data());
  return {begin + sizeof h, begin + h.len_bytes};
}

std::vector<uint64_t> record_buffer() {
  return std::vector<uint64_t>(wire::MAX_RECORD_BYTES / sizeof(uint64_t));
}

}  // namespace

TEST_CASE("records of every length arrive whole, in order, over many laps") {
  Pair pair;
  std::vector<uint64_t> record = record_buffer();
  uint32_t len = 0;
  for (uint32_t i = 0; i < 2000; ++i) {
    len = (len * 7 + i * 13 + 5) % (wire::MAX_RECORD_BYTES - sizeof(wire::Header) + 1);
    std::vector<uint8_t> body(len);
    for (uint32_t j = 0; j < len; ++j) body[j] = static_cast<uint8_t>(i * 31 + j);
    REQUIRE(send(pair, static_cast<uint16_t>(i), body));
    wire::Header h;
    REQUIRE(pair.consumer.peek(&h));
    REQUIRE(h.opcode == static_cast<uint16_t>(i));
    REQUIRE(h.len_bytes == sizeof h + len);
    pair.consumer.take(h, record.data());
    REQUIRE(body_of(record, h) == body);
    REQUIRE(pair.consumer.position() == pair.producer.position());
    REQUIRE_FALSE(pair.consumer.peek(&h));
  }
  CHECK(pair.consumer.error() == RingError::NONE);
  CHECK(pair.producer.error() == RingError::NONE);
}

TEST_CASE("a call with 32 bytes of arguments is one cache line") {
  Pair pair;
  REQUIRE(send(pair, 1, std::vector<uint8_t>(32)));
  CHECK(pair.producer.position() == 64);
}

TEST_CASE("a full ring takes nothing until the consumer gives space back") {
  Pair pair;
  uint64_t n_sent = 0;
  while (send(pair, 1, std::vector<uint8_t>(32))) ++n_sent;
  // One line stays free: the next commit word must be cleared before a record is committed.
  CHECK(n_sent == RING_BYTES / 64 - 1);
  CHECK(pair.producer.error() == RingError::NONE);
  wire::Header h;
  std::vector<uint64_t> record = record_buffer();
  REQUIRE(pair.consumer.peek(&h));
  pair.consumer.take(h, record.data());
  pair.consumer.publish();
  CHECK(send(pair, 1, std::vector<uint8_t>(32)));
  CHECK_FALSE(send(pair, 1, std::vector<uint8_t>(32)));
}

TEST_CASE("who has a share of the room finds none beyond it") {
  Pair pair;
  const std::vector<uint8_t> body(96);  // records of 128 bytes
  const auto send_all = [&] {
    int n = 0;
    while (send(pair, 1, body)) ++n;
    return n;
  };
  pair.producer.begin_share(1024);
  CHECK(pair.producer.is_shared());
  CHECK(send_all() == 7);  // a line more than the record is needed
  CHECK(pair.producer.error() == RingError::NONE);
  pair.producer.end_share();
  CHECK(send_all() == RING_BYTES / 128 - 1 - 7);
  pair.producer.begin_share(1024);  // of a full ring: nothing
  CHECK(send_all() == 0);
}

TEST_CASE("records of an earlier lap are not taken again") {
  Pair pair;
  std::vector<uint64_t> record = record_buffer();
  wire::Header h;
  for (uint64_t i = 0; i < 3 * RING_BYTES / 64; ++i) {
    REQUIRE_FALSE(pair.consumer.peek(&h));
    REQUIRE(send(pair, 1, {}));
    REQUIRE(pair.consumer.peek(&h));
    pair.consumer.take(h, record.data());
  }
}

TEST_CASE("what was checked is what is used: a header changed after peek has no effect") {
  Pair pair;
  REQUIRE(send(pair, 7, std::vector<uint8_t>(100, 0xab)));
  wire::Header h;
  REQUIRE(pair.consumer.peek(&h));
  pair.header_at(0)->len_bytes = 0xffffffff;
  pair.header_at(0)->opcode = 9;
  std::vector<uint64_t> record = record_buffer();
  pair.consumer.take(h, record.data());
  const auto* taken = reinterpret_cast<const wire::Header*>(record.data());
  CHECK(taken->opcode == 7);
  CHECK(taken->len_bytes == 132);
  CHECK(pair.consumer.position() == 192);
}

TEST_CASE("a hostile producer's lengths are refused and nothing is consumed") {
  Pair pair;
  REQUIRE(send(pair, 1, {}));
  wire::Header h;
  SUBCASE("shorter than a header") { pair.header_at(0)->len_bytes = 31; }
  SUBCASE("nothing") { pair.header_at(0)->len_bytes = 0; }
  SUBCASE("longer than a record") { pair.header_at(0)->len_bytes = wire::MAX_RECORD_BYTES + 1; }
  SUBCASE("wraps when padded") { pair.header_at(0)->len_bytes = 0xfffffff0; }
  REQUIRE_FALSE(pair.consumer.peek(&h));
  CHECK(pair.consumer.error() == RingError::BAD_LENGTH);
  CHECK(pair.consumer.position() == 0);
}

TEST_CASE("a record over the end of the ring, or a PAD that does not end there, is refused") {
  Pair pair;
  std::vector<uint64_t> record = record_buffer();
  wire::Header h;
  for (uint64_t i = 0; i < RING_BYTES / 64 - 1; ++i) {
    REQUIRE(send(pair, 1, {}));
    REQUIRE(pair.consumer.peek(&h));
    pair.consumer.take(h, record.data());
  }
  REQUIRE(send(pair, 1, {}));
  SUBCASE("record") { pair.header_at(RING_BYTES - 64)->len_bytes = 65; }
  SUBCASE("PAD") {
    pair.header_at(RING_BYTES - 64)->len_bytes = 128;
    pair.header_at(RING_BYTES - 64)->flags = wire::PAD;
  }
  REQUIRE_FALSE(pair.consumer.peek(&h));
  CHECK(pair.consumer.error() == RingError::BAD_POSITION);
}

TEST_CASE("a hostile consumer's credit is refused") {
  Pair pair;
  std::vector<uint64_t> record = record_buffer();
  wire::Header h;
  while (send(pair, 1, {})) {
  }
  REQUIRE(pair.consumer.peek(&h));
  pair.consumer.take(h, record.data());
  pair.consumer.publish();
  REQUIRE(send(pair, 1, {}));
  SUBCASE("backwards") { pair.credit = 0; }
  SUBCASE("past what was sent") { pair.credit = pair.producer.position() + 64; }
  REQUIRE_FALSE(send(pair, 1, {}));
  CHECK(pair.producer.error() == RingError::BAD_CREDIT);
}

TEST_CASE("a handle says what it is") {
  const wire::Handle h = wire::make_handle(wire::Kind::EVENT, 5, 0x12345, 0xabcde);
  CHECK(wire::handle_tagged(h));
  CHECK(wire::handle_kind(h) == wire::Kind::EVENT);
  CHECK(wire::handle_endpoint(h) == 5);
  CHECK(wire::handle_index(h) == 0x12345);
  CHECK_FALSE(wire::handle_tagged(h & ~(uint64_t{0xff} << 56)));
}
