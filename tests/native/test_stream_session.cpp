// SPDX-License-Identifier: Apache-2.0
// The agent's end of the byte-stream form, with a client and a link that are played here.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include "kvgpu/opcodes.gen.h"
#include "stream_session.h"

namespace kvgpu::agent {

namespace {

using control::Type;

constexpr uint64_t REGION_BYTES = 32ull << 20, BLOCK_OFFSET = 2ull << 20;
constexpr uint64_t SHARED_OFF = BLOCK_OFFSET + SLAB_OFF;

class Peers {
 public:
  Peers() {
    control::Opened opened{};
    opened.session = 7;
    opened.block_offset = BLOCK_OFFSET;
    opened.block_bytes = BLOCK_BYTES;
    opened.region_bytes = REGION_BYTES;
    session = StreamSession::make(opened, {.send =
                                               [this](const Frame& frame) {
                                                 n_shares += frame.type == Type::SHARE;
                                                 n_records += frame.type == Type::RECORDS;
                                               },
                                           .is_congested = [this] { return n_shares >= room; }});
    REQUIRE(session != nullptr);
    void* const block =
        mmap(nullptr, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, session->fd(), BLOCK_OFFSET);
    REQUIRE(block != MAP_FAILED);
    block_ = static_cast<std::byte*>(block);
    auto* const page = reinterpret_cast<HostPage*>(block_ + HOST_PAGE_OFF);
    commands_ = Producer(block_ + COMMAND_RING_OFF, COMMAND_RING_BYTES, &page->command_credit);
  }
  ~Peers() { munmap(block_, BLOCK_BYTES); }
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // On and off again, until the ring is full; returns how many records that took.
  int fill_ring_with_shares() {
    for (int n = 0;; ++n) {
      wire::Header header{};
      header.opcode = static_cast<uint16_t>(wire::Op::SHARE);
      header.flags = wire::NOREPLY;
      const wire::Share share{SHARED_OFF, 64, n % 2 == 0 ? 1u : 0u};
      if (!commands_.reserve(sizeof header + sizeof share)) return n;
      commands_.write(header, part(share));
    }
  }

  std::unique_ptr<StreamSession> session;
  int n_shares = 0, n_records = 0, room = 1 << 30;

 private:
  std::byte* block_ = nullptr;
  Producer commands_;
};

}  // namespace

TEST_CASE("a client that shares without end has its turn, and no more than that") {
  Peers peers;
  const int n = peers.fill_ring_with_shares();
  REQUIRE(n > 1000);
  peers.session->pump();
  CHECK(peers.n_shares > 0);
  CHECK(peers.n_shares < 100);
  const auto next = peers.session->next_look();
  REQUIRE(next.has_value());
  CHECK(*next <= StreamSession::Clock::now());
  for (int i = 0; i < n && peers.n_shares < n; ++i) peers.session->pump();
  CHECK(peers.n_shares == n);
  peers.session->pump();
  CHECK(peers.n_records == 0);
  CHECK(peers.session->failure().empty());
}

TEST_CASE("nothing is shared while the link has no room, and all of it later") {
  Peers peers;
  const int n = peers.fill_ring_with_shares();
  peers.room = 5;
  peers.session->pump();
  peers.session->pump();
  CHECK(peers.n_shares == 5);
  peers.room = 1 << 30;
  for (int i = 0; i < n && peers.n_shares < n; ++i) peers.session->pump();
  CHECK(peers.n_shares == n);
}

}  // namespace kvgpu::agent
