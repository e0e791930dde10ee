// SPDX-License-Identifier: Apache-2.0
#include "stream_end.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "control.h"
#include "session.h"

namespace kvgpu::worker {

namespace {

using control::Type;
using std::chrono::milliseconds;

constexpr size_t BATCH_BYTES = control::MAX_STREAM_PAYLOAD_BYTES;
// Memory that both sides look at without a call (mapped memory) is compared now and then: soon
// after something has happened, ever more rarely while nothing does.
constexpr milliseconds FIRST_SWEEP_PAUSE{2}, LAST_SWEEP_PAUSE{200};
constexpr int SWEEP_SHARE = 20;  // of this thread's time, at most one part

}  // namespace

bool StreamEnd::open(uint64_t window, int region_fd, uint64_t region_bytes, std::string* error) {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  region_begin_ = window;
  auto* const region = reinterpret_cast<std::byte*>(window);
  if (wake_fd_ >= 0 && mirror_.open(region, region_fd, region_bytes)) return true;
  *error = std::string("cannot mirror the region: ") + strerror(errno);
  return false;
}

void StreamEnd::violation(const char* what) {
  end_session(std::string("the guest broke the byte-stream form: ") + what, ExitStatus::VIOLATION);
}

void StreamEnd::attach(Session& session) {
  session_ = &session;
  guest_page_ = reinterpret_cast<GuestPage*>(session.block + GUEST_PAGE_OFF);
  commands_ = Producer(session.block + COMMAND_RING_OFF, COMMAND_RING_BYTES,
                       &session.host_page->command_credit);
  events_ = Consumer(session.block + EVENT_RING_OFF, EVENT_RING_BYTES, &guest_page_->event_credit);
}

bool StreamEnd::step() {
  bool moved = receive();
  moved |= feed_commands();
  moved |= forward_events();
  return moved;
}

void StreamEnd::serve() {
  for (;;) {
    if (step()) {
      sweep_pause_ = FIRST_SWEEP_PAUSE;
      next_sweep_ = Clock::now() + sweep_pause_;
    } else {
      sleep(fed_ < waiting_.size());
    }
  }
}

void StreamEnd::sleep(bool blocked) {
  milliseconds limit{-1};
  if (mirror_.any_shared()) {
    const auto begin = Clock::now();
    if (begin >= next_sweep_) {
      send_changes();
      const auto end = Clock::now();
      sweep_pause_ =
          std::max<Clock::duration>(std::min<Clock::duration>(sweep_pause_ * 2, LAST_SWEEP_PAUSE),
                                    (end - begin) * SWEEP_SHARE);
      next_sweep_ = end + sweep_pause_;
    }
    limit = std::chrono::ceil<milliseconds>(next_sweep_ - Clock::now());
    limit = std::max(limit, milliseconds{0});
  }
  if (blocked) limit = milliseconds{1};  // nobody says when there is room in the command ring
  pollfd fds[] = {{STREAM_FD, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  if (poll(fds, 2, static_cast<int>(limit.count())) > 0 && fds[1].revents != 0) {
    uint64_t count;
    (void)!::read(wake_fd_, &count, sizeof count);
  }
}

// ---- to the guest

bool StreamEnd::forward_events() {
  const bool any = take_events();
  const bool failed = load_acquire(session_->host_page->error_word) != told_error_word_;
  if (!any && !failed) return false;
  // What the GPU and the driver wrote before an event was sent is with the guest before it.
  send_changes();
  if (failed) send_status();
  if (any) send(Type::EVENTS, batch_.data(), static_cast<uint32_t>(batch_.size()));
  sent_bytes_ += batch_.size();
  batch_.clear();
  return true;
}

bool StreamEnd::take_events() {
  const uint64_t on_their_way = sent_bytes_ - guest_taken_bytes_;
  const uint64_t room = std::min<uint64_t>(BATCH_BYTES, stream_form::WINDOW_BYTES - on_their_way);
  wire::Header header;
  while (events_.peek(&header)) {
    const uint32_t padded = wire::padded(header.len_bytes);
    if (batch_.size() + padded > room) break;
    batch_.resize(batch_.size() + padded);
    events_.take(header, batch_.data() + batch_.size() - padded);
  }
  if (events_.error() != RingError::NONE) violation(to_string(events_.error()));
  if (events_.unpublished()) events_.publish();
  return !batch_.empty();
}

void StreamEnd::send_changes() {
  std::array<stream_form::Line, stream_form::MAX_LINES> lines;
  mirror_.begin_sweep();
  for (size_t n; (n = mirror_.sweep(lines)) > 0;) {
    send(Type::DATA, lines.data(), static_cast<uint32_t>(n * sizeof lines[0]));
  }
}

void StreamEnd::send_status() {
  const HostPage& page = *session_->host_page;
  told_error_word_ = load_acquire(page.error_word);
  const stream_form::Status status{told_error_word_, load_relaxed(page.error_position),
                                   load_relaxed(page.error_opcode)};
  send(Type::STATUS, &status, sizeof status);
}

void StreamEnd::send(Type type, const void* payload, uint32_t len_bytes) {
  std::array<std::byte, sizeof(control::FrameHeader) + control::MAX_STREAM_PAYLOAD_BYTES> frame;
  const control::FrameHeader header{control::FRAME_MAGIC, static_cast<uint16_t>(type), 0, len_bytes,
                                    session_->config.session_id};
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, payload, len_bytes);
  // Blocks while the guest does not read: then nothing else can be done for it either.
  while (::send(STREAM_FD, frame.data(), sizeof header + len_bytes, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) end_session("the channel to the guest is gone", ExitStatus::ENDED);
  }
}

// ---- from the guest

bool StreamEnd::receive() {
  std::array<std::byte, sizeof(control::FrameHeader) + control::MAX_STREAM_PAYLOAD_BYTES + 1> frame;
  bool any = false;
  for (;;) {
    const ssize_t n = recv(STREAM_FD, frame.data(), frame.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return any;
    if (n <= 0) end_session("the channel to the guest is gone", ExitStatus::ENDED);
    control::FrameHeader header;
    if (static_cast<size_t>(n) < sizeof header) violation("a frame without a header");
    std::memcpy(&header, frame.data(), sizeof header);
    const auto len_bytes = static_cast<uint32_t>(static_cast<size_t>(n) - sizeof header);
    if (len_bytes != header.len_bytes) violation("a frame of another length than it says");
    handle(static_cast<Type>(header.type), frame.data() + sizeof header, len_bytes);
    any = true;
  }
}

template <typename Body>
Body StreamEnd::read_body(const std::byte* payload, uint32_t len_bytes) {
  Body body;
  if (len_bytes < sizeof body) violation("a frame that is too short");
  std::memcpy(&body, payload, sizeof body);
  return body;
}

void StreamEnd::handle(Type type, const std::byte* payload, uint32_t len_bytes) {
  switch (type) {
    case Type::SHARE:
      return share(read_body<stream_form::Share>(payload, len_bytes));
    case Type::DATA:
      return apply(payload, len_bytes);
    case Type::RECORDS:
      if (waiting_.size() - fed_ + len_bytes > stream_form::WINDOW_BYTES) {
        violation("more records than it has credit for");
      }
      waiting_.insert(waiting_.end(), payload, payload + len_bytes);
      return;
    case Type::CREDIT: {
      const auto body = read_body<stream_form::Credit>(payload, len_bytes);
      if (body.taken_bytes < guest_taken_bytes_ || body.taken_bytes > sent_bytes_) {
        violation("credit outside of what was sent");
      }
      guest_taken_bytes_ = body.taken_bytes;
      return;
    }
    case Type::CALLBACK_DONE:
      // release: pairs with the acquire in Callbacks::relay(); the data came before
      store_release(guest_page_->callback_done,
                    read_body<stream_form::CallbackDone>(payload, len_bytes).token);
      return;
    default:
      violation("a frame of a type that is not the guest's");
  }
}

void StreamEnd::share(const stream_form::Share& range) {
  if (range.on == 0) {
    if (!mirror_.unshare(range.region_off)) violation("it gives back what is not shared");
    return;
  }
  const uint64_t address = region_begin_ + range.region_off;
  const auto slab = reinterpret_cast<uint64_t>(session_->slab());
  const bool in_slab = address >= slab && address - slab <= SLAB_BYTES &&
                       range.bytes <= SLAB_BYTES - (address - slab);
  if (!mirror_.is_valid(range.region_off, range.bytes) ||
      (!in_slab && !session_->is_session_memory(address, range.bytes)) ||
      !mirror_.share(range.region_off, range.bytes)) {
    violation("it shares what is not its own");
  }
  // What an earlier owner of the range left here late is not the new one's.
  mirror_.settle(range.region_off, range.bytes);
}

void StreamEnd::apply(const std::byte* payload, uint32_t len_bytes) {
  stream_form::Line line;
  if (len_bytes % sizeof line != 0) violation("half a line of data");
  for (uint32_t at = 0; at < len_bytes; at += sizeof line) {
    std::memcpy(&line, payload + at, sizeof line);
    if (!mirror_.is_valid(line.region_off, stream_form::LINE_BYTES) ||
        !mirror_.is_shared(line.region_off, stream_form::LINE_BYTES)) {
      violation("data for memory that is not shared");
    }
    mirror_.apply(line);
  }
}

bool StreamEnd::feed_commands() {
  bool any = false;
  while (fed_ < waiting_.size()) {
    wire::Header header;
    if (waiting_.size() - fed_ < sizeof header) violation("a record without a header");
    std::memcpy(&header, waiting_.data() + fed_, sizeof header);
    if (header.len_bytes < sizeof header || header.len_bytes > wire::MAX_RECORD_BYTES ||
        wire::padded(header.len_bytes) > waiting_.size() - fed_ || (header.flags & wire::PAD)) {
      violation("a record of a bad length");
    }
    if (!commands_.reserve(header.len_bytes)) break;
    const uint32_t body_bytes = header.len_bytes - static_cast<uint32_t>(sizeof header);
    commands_.write(header, Part{waiting_.data() + fed_ + sizeof header, body_bytes});
    fed_ += wire::padded(header.len_bytes);
    taken_bytes_ += wire::padded(header.len_bytes);
    any = true;
  }
  if (commands_.error() != RingError::NONE) violation(to_string(commands_.error()));
  if (!any) return false;
  if (fed_ == waiting_.size()) {
    waiting_.clear();
    fed_ = 0;
  } else if (fed_ >= stream_form::WINDOW_BYTES) {
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(fed_));
    fed_ = 0;
  }
  wake_reader();
  if (taken_bytes_ - credited_bytes_ >= stream_form::WINDOW_BYTES / 4) {
    credited_bytes_ = taken_bytes_;
    const stream_form::Credit credit{taken_bytes_};
    send(Type::CREDIT, &credit, sizeof credit);
  }
  return true;
}

void StreamEnd::wake_reader() {
  fence_full();  // as the guest's library does: pairs with the fence in sleep_until_kicked()
  if (load_relaxed(session_->host_page->need_wakeup) != 0) {
    (void)!eventfd_write(session_->config.kick_fd, 1);
  }
}

}  // namespace kvgpu::worker
