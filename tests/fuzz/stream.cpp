// SPDX-License-Identifier: Apache-2.0
// The worker's end of the byte-stream form: frames of a hostile guest, and the session behind them.
// The actions are those of `decode`, as such a guest would do them.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "guest.h"
#include "kvgpu/layout.h"
#include "kvgpu/stream_form.h"
#include "mutate.h"
#include "null_driver.h"
#include "session.h"
#include "stream_end.h"

using namespace kvgpu;
using namespace kvgpu::fuzz;
using control::Type;

namespace {

constexpr size_t MAX_FRAME_BYTES = sizeof(control::FrameHeader) + control::MAX_STREAM_PAYLOAD_BYTES;
int guest_end = -1;

// What the worker sends must be well-formed whatever the guest did.
void check_frame(const std::byte* frame, size_t n) {
  control::FrameHeader header{};
  if (n < sizeof header) breach("a frame without a header", n, 0);
  std::memcpy(&header, frame, sizeof header);
  if (header.len_bytes != n - sizeof header || header.id != 1) {
    breach("a frame of a bad length or session", header.len_bytes, header.id);
  }
  const auto type = static_cast<Type>(header.type);
  if (type != Type::DATA) {
    if (type != Type::EVENTS && type != Type::CREDIT && type != Type::STATUS) {
      breach("a frame of a type that is not the worker's", header.type, 0);
    }
    return;
  }
  if (header.len_bytes % sizeof(stream_form::Line) != 0) breach("half a line", n, 0);
  for (size_t at = sizeof header; at < n; at += sizeof(stream_form::Line)) {
    stream_form::Line line;
    std::memcpy(&line, frame + at, sizeof line);
    if (line.region_off < BLOCK_OFFSET + SLAB_OFF || line.region_off >= REGION_BYTES) {
      breach("data of what nobody may share", line.region_off, 0);
    }
  }
}

void read_for_ever() {
  std::array<std::byte, MAX_FRAME_BYTES + 1> frame;
  for (;;) {
    const ssize_t n = recv(guest_end, frame.data(), frame.size(), 0);
    if (n > 0) check_frame(frame.data(), static_cast<size_t>(n));
  }
}

// What an earlier session left unread.
void drain() {
  std::array<std::byte, 64> some;
  while (recv(worker::STREAM_FD, some.data(), some.size(), MSG_DONTWAIT) >= 0) {
  }
}

class StreamGuest {
 public:
  explicit StreamGuest(worker::Session* session) : session_(session) {
    std::string error;
    const worker::SessionConfig& config = session->config;
    if (!end_.open(config.window, config.region_fd, config.region_bytes, &error)) std::abort();
    end_.attach(*session);
  }
  ~StreamGuest() { close(end_.wake_fd()); }

  void act(const Action& action) {
    switch (action.what) {
      case Do::SLAB:
        return write_slab(action);
      case Do::RAW:  // any frame
        return say(static_cast<Type>(32 + action.value % 16), action.bytes);
      case Do::EVENT_CREDIT:
        return say(Type::CREDIT, action.bytes);
      case Do::FAULTS:
        null_driver().set_faults(action.value);
        return;
      default:
        return say_record(action);
    }
  }

 private:
  void say(Type type, const std::vector<std::byte>& payload) {
    const auto len_bytes = static_cast<uint32_t>(payload.size());
    const control::FrameHeader header{control::FRAME_MAGIC, static_cast<uint16_t>(type), 0,
                                      len_bytes, 1};
    std::vector<std::byte> frame(sizeof header + len_bytes);
    std::memcpy(frame.data(), &header, sizeof header);
    std::copy(payload.begin(), payload.end(), frame.begin() + sizeof header);
    if (send(guest_end, frame.data(), frame.size(), MSG_NOSIGNAL) < 0) std::abort();
    while (end_.step() | work()) {
    }
    if (session_->host_page->magic != 0) breach("the guest wrote the host page", 0, 0);
  }

  bool work() {
    bool any = false;
    while (session_->read_command()) {
      any = true;
      while (session_->execute_one()) {
      }
    }
    return any;
  }

  // Shares the lines it needs, or once more what is shared, which is hostile.
  void write_slab(const Action& action) {
    constexpr uint64_t LINE = stream_form::LINE_BYTES;
    const uint64_t off = BLOCK_OFFSET + SLAB_OFF + action.value % SLAB_BYTES / LINE * LINE;
    const size_t n_lines = (action.bytes.size() + LINE - 1) / LINE;
    if (action.flags % 8 != 7) {
      say(Type::SHARE, bytes_of(stream_form::Share{off, n_lines * LINE, action.flags % 8 != 6}));
    }
    std::vector<std::byte> data;
    for (size_t i = 0; i < n_lines; ++i) {
      stream_form::Line line{off + i * LINE, ~0ull, {}};
      const size_t n = std::min<size_t>(LINE, action.bytes.size() - i * LINE);
      std::memcpy(line.words, action.bytes.data() + i * LINE, n);
      if (action.target != 0) line.mask = action.target * 0x0101'0101'0101'0101ull;
      const auto bytes = bytes_of(line);
      data.insert(data.end(), bytes.begin(), bytes.end());
    }
    say(Type::DATA, data);
  }

  void say_record(const Action& action) {
    const auto len_bytes = static_cast<uint32_t>(sizeof(wire::Header) + action.bytes.size());
    wire::Header header{};
    header.len_bytes = len_bytes;
    header.opcode = action.opcode;
    header.flags = action.flags;
    header.call_id = ++n_calls_;
    header.target = wire::make_target(action.target & 0xf, action.target >> 4);
    const size_t n = std::min(action.bytes.size(), sizeof header.len_bytes);
    auto* const length = reinterpret_cast<std::byte*>(&header.len_bytes);
    if (action.what == Do::BAD_LENGTH) std::copy_n(action.bytes.begin(), n, length);
    std::vector<std::byte> record = bytes_of(header);
    record.insert(record.end(), action.bytes.begin(), action.bytes.end());
    // Where the commit word would be wrong in a ring, here the padding is.
    if (action.what != Do::BAD_COMMIT) record.resize(wire::padded(len_bytes));
    say(Type::RECORDS, record);
  }

  template <typename Body>
  static std::vector<std::byte> bytes_of(const Body& body) {
    const auto* const begin = reinterpret_cast<const std::byte*>(&body);
    return {begin, begin + sizeof body};
  }

  worker::Session* const session_;
  worker::StreamEnd end_;
  uint64_t n_calls_ = 0;
};

void print_called() {
  std::fprintf(stderr, "figure: %zu of the driver's functions were called\n",
               null_driver().called().size());
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (fcntl(worker::STREAM_FD, F_GETFD) >= 0) breach("descriptor in use", worker::STREAM_FD, 0);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  guest_end = fcntl(ends[0], F_DUPFD_CLOEXEC, worker::STREAM_FD + 1);
  if (ends[1] != worker::STREAM_FD && dup2(ends[1], worker::STREAM_FD) < 0) std::abort();
  std::thread(read_for_ever).detach();
  prepare();
  std::atexit(print_called);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<Action> actions = parse({data, size});
  drain();
  with_session([&](worker::Session& session) {
    StreamGuest guest(&session);
    for (const Action& action : actions) guest.act(action);
  });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return mutate_input(data, size, max_size, seed);
}
