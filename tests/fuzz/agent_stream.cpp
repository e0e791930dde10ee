// SPDX-License-Identifier: Apache-2.0
// The agent's end of the byte-stream form, between a client that may write anything into the
// session's memory and a host that may send anything.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "kvgpu/opcodes.gen.h"
#include "stream_session.h"

using namespace kvgpu;
using control::Type;

namespace {

constexpr uint64_t REGION_BYTES = 32ull << 20, BLOCK_OFFSET = 2ull << 20;
constexpr uint32_t SESSION = 7;

enum class Do : uint8_t { HOST_FRAME, HOST_CREDIT, CLIENT_WRITES, RECORD, CONGESTION, COUNT };

struct Head {
  uint8_t what;
  uint8_t type;
  uint16_t len_bytes;
  uint32_t value;
};
static_assert(sizeof(Head) == 8);

class Peers {
 public:
  Peers() {
    control::Opened opened{};
    opened.session = SESSION;
    opened.block_offset = BLOCK_OFFSET;
    opened.block_bytes = BLOCK_BYTES;
    opened.region_bytes = REGION_BYTES;
    session_ = agent::StreamSession::make(
        opened, {.send = [this](const agent::Frame& frame) { on_sent(frame); },
                 .is_congested = [this] { return is_congested_; }});
    if (!session_) std::abort();
    void* const block = mmap(nullptr, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                             session_->fd(), BLOCK_OFFSET);
    if (block == MAP_FAILED) std::abort();
    block_ = static_cast<std::byte*>(block);
    auto* const page = reinterpret_cast<HostPage*>(block_ + HOST_PAGE_OFF);
    commands_ = Producer(block_ + COMMAND_RING_OFF, COMMAND_RING_BYTES, &page->command_credit);
  }
  ~Peers() { munmap(block_, BLOCK_BYTES); }

  bool goes_on() const { return session_->failure().empty(); }

  void act(const Head& head, std::span<const uint8_t> bytes) {
    switch (static_cast<Do>(head.what % static_cast<uint8_t>(Do::COUNT))) {
      case Do::HOST_FRAME:
        session_->on_frame(
            {static_cast<Type>(32 + head.type % 8), SESSION, {bytes.begin(), bytes.end()}});
        break;
      case Do::HOST_CREDIT:
        session_->on_frame(
            agent::make_frame(Type::CREDIT, SESSION, stream_form::Credit{sent_record_bytes_}));
        break;
      case Do::CLIENT_WRITES: {
        const uint64_t at = head.value % BLOCK_BYTES;
        std::memcpy(block_ + at, bytes.data(), std::min<uint64_t>(bytes.size(), BLOCK_BYTES - at));
        break;
      }
      case Do::RECORD: {
        wire::Header header{};
        header.opcode = head.type % 4 == 0 ? head.type : static_cast<uint16_t>(wire::Op::SHARE);
        if (commands_.reserve(static_cast<uint32_t>(sizeof header + bytes.size()))) {
          commands_.write(header, Part{bytes.data(), static_cast<uint32_t>(bytes.size())});
        }
        break;
      }
      default:
        is_congested_ = !is_congested_;
    }
    session_->pump();
    (void)session_->next_look();
  }

 private:
  void on_sent(const agent::Frame& frame) {
    const size_t n = frame.payload.size();
    if (frame.id != SESSION || n > control::MAX_STREAM_PAYLOAD_BYTES) std::abort();
    if (frame.type == Type::DATA && (n == 0 || n % sizeof(stream_form::Line) != 0)) std::abort();
    if (frame.type != Type::RECORDS) return;
    sent_record_bytes_ += n;
    if (n % wire::RECORD_ALIGN_BYTES != 0) std::abort();
    for (size_t at = 0; at < n;) {  // whole records, and none that is the agent's alone
      wire::Header header;
      std::memcpy(&header, frame.payload.data() + at, sizeof header);
      if (header.len_bytes < sizeof header || wire::padded(header.len_bytes) > n - at ||
          header.opcode == static_cast<uint16_t>(wire::Op::SHARE)) {
        std::abort();
      }
      at += wire::padded(header.len_bytes);
    }
  }

  std::unique_ptr<agent::StreamSession> session_;
  std::byte* block_ = nullptr;
  Producer commands_;
  uint64_t sent_record_bytes_ = 0;
  bool is_congested_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Peers peers;
  std::span<const uint8_t> input(data, size);
  while (input.size() >= sizeof(Head) && peers.goes_on()) {
    Head head;
    std::memcpy(&head, input.data(), sizeof head);
    input = input.subspan(sizeof head);
    const auto bytes = input.first(std::min<size_t>(head.len_bytes, input.size()));
    input = input.subspan(bytes.size());
    peers.act(head, bytes);
  }
  return 0;
}
