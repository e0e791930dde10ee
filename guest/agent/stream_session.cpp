// SPDX-License-Identifier: Apache-2.0
#include "stream_session.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kvgpu/opcodes.gen.h"

namespace kvgpu::agent {

namespace {

using control::Type;
using std::chrono::milliseconds;

constexpr uint64_t MAX_REGION_BYTES = SESSION_WINDOW_BYTES;
// As in the worker: memory that both sides look at without a call is compared now and then.
constexpr milliseconds FIRST_SWEEP_PAUSE{2}, LAST_SWEEP_PAUSE{200};
constexpr int SWEEP_SHARE = 20;  // of the agent's time, at most one part
constexpr milliseconds LONGEST_PAUSE{2000};
// A program that does not empty its event ring says nothing when it begins to.
constexpr milliseconds FIRST_ROOM_PAUSE{1}, LAST_ROOM_PAUSE{50};
// Taken in one turn: nothing else bounds how many a client may write.
constexpr int MAX_SHARES = 32;

}  // namespace

std::unique_ptr<StreamSession> StreamSession::make(const control::Opened& opened, Link link) {
  if (opened.region_bytes > MAX_REGION_BYTES || opened.block_bytes < BLOCK_BYTES ||
      opened.block_offset % PAGE_BYTES != 0 || opened.block_bytes > opened.region_bytes ||
      opened.block_offset > opened.region_bytes - opened.block_bytes) {
    return nullptr;
  }
  UniqueFd fd(static_cast<int>(
      syscall(SYS_memfd_create, "kvgpu-session", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  // Sealed: no client can shrink it under the agent.
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(opened.region_bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return nullptr;
  }
  std::unique_ptr<StreamSession> session(new StreamSession(std::move(fd), opened, std::move(link)));
  return session->map() ? std::move(session) : nullptr;
}

StreamSession::StreamSession(UniqueFd fd, const control::Opened& opened, Link link)
    : fd_(std::move(fd)),
      session_(opened.session),
      region_bytes_(opened.region_bytes),
      block_off_(opened.block_offset),
      version_(uint32_t{opened.major} << 16 | opened.minor),
      link_(std::move(link)) {}

StreamSession::~StreamSession() {
  if (region_ != nullptr) munmap(region_, region_bytes_);
}

bool StreamSession::map() {
  constexpr int PROTECTION = PROT_READ | PROT_WRITE;
  void* const region =
      mmap(nullptr, region_bytes_, PROTECTION, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (region == MAP_FAILED) return false;
  region_ = static_cast<std::byte*>(region);
  std::byte* const block = region_ + block_off_;
  host_page_ = reinterpret_cast<HostPage*>(block + HOST_PAGE_OFF);
  guest_page_ = reinterpret_cast<GuestPage*>(block + GUEST_PAGE_OFF);
  host_page_->version = version_;
  host_page_->features = control::FEATURE_PROGRESS_RECORDS | control::FEATURE_BYTE_STREAM;
  host_page_->need_wakeup = n_sleeps_ = 1;
  host_page_->magic = BLOCK_MAGIC;
  commands_ = Consumer(block + COMMAND_RING_OFF, COMMAND_RING_BYTES, &host_page_->command_credit);
  events_ = Producer(block + EVENT_RING_OFF, EVENT_RING_BYTES, &guest_page_->event_credit);
  return mirror_.open(region_, fd_.get(), region_bytes_);
}

void StreamSession::fail(const char* what) {
  if (failure_.empty()) failure_ = what;
}

// ---- to the host

void StreamSession::pump() {
  n_shares_left_ = MAX_SHARES;
  if (deliver_events()) sweep_soon();
  do {
    while (step()) {
    }
  } while (failure_.empty() && !fall_asleep());
}

void StreamSession::sweep_soon() {
  sweep_pause_ = FIRST_SWEEP_PAUSE;
  next_sweep_ = Clock::now() + sweep_pause_;
}

bool StreamSession::sweep_is_due() const {
  return mirror_.any_shared() && Clock::now() >= next_sweep_;
}

// Everything the client wrote before a record or a token must be with the host before it: a sweep
// lies between taking and sending. False: nothing more can be done now.
bool StreamSession::step() {
  if (!failure_.empty() || link_.is_congested()) return false;
  if (!is_sweeping_) {
    // acquire: pairs with the client's release; what its function wrote is swept
    next_token_ = load_acquire(guest_page_->callback_done);
    const bool fresh = records_.empty() && take_records();
    const bool called = fresh || next_token_ != sent_token_;
    if (!called && !sweep_is_due()) return send_records();
    sweep_pause_ =
        called ? FIRST_SWEEP_PAUSE : std::min<Clock::duration>(sweep_pause_ * 2, LAST_SWEEP_PAUSE);
    sweep_begin_ = Clock::now();
    mirror_.begin_sweep();
    is_sweeping_ = true;
  }
  if (!send_changes()) return false;
  is_sweeping_ = false;
  const auto now = Clock::now();
  next_sweep_ =
      now + std::max(sweep_pause_,
                     std::min<Clock::duration>((now - sweep_begin_) * SWEEP_SHARE, LONGEST_PAUSE));
  if (next_token_ != sent_token_) {
    sent_token_ = next_token_;
    link_.send(make_frame(Type::CALLBACK_DONE, session_, stream_form::CallbackDone{sent_token_}));
  }
  return send_records();
}

bool StreamSession::take_records() {
  wire::Header header;
  alignas(8) std::byte record[wire::MAX_RECORD_BYTES];
  while (n_shares_left_ > 0 && !link_.is_congested() && commands_.peek(&header)) {
    const uint32_t padded = wire::padded(header.len_bytes);
    if (records_.size() + padded > control::MAX_STREAM_PAYLOAD_BYTES) break;
    commands_.take(header, record);
    if (header.opcode == static_cast<uint16_t>(wire::Op::SHARE)) {
      take_share(record + sizeof header, header.len_bytes - static_cast<uint32_t>(sizeof header));
      continue;
    }
    const auto* const bytes = reinterpret_cast<const uint8_t*>(record);
    records_.insert(records_.end(), bytes, bytes + header.len_bytes);
    records_.resize(records_.size() + padded - header.len_bytes);
  }
  if (commands_.error() != RingError::NONE) fail(to_string(commands_.error()));
  if (commands_.unpublished()) commands_.publish();
  return !records_.empty();
}

void StreamSession::take_share(const std::byte* body, uint32_t len_bytes) {
  --n_shares_left_;
  wire::Share share;
  if (len_bytes < sizeof share) return fail("a SHARE record that is too short");
  std::memcpy(&share, body, sizeof share);
  const bool done = share.on == 0 ? mirror_.unshare(share.region_off)
                                  : mirror_.is_valid(share.region_off, share.bytes) &&
                                        mirror_.share(share.region_off, share.bytes);
  if (!done) return fail("a SHARE record of memory that cannot be shared");
  const stream_form::Share frame{share.region_off, share.bytes, share.on};
  link_.send(make_frame(Type::SHARE, session_, frame));
}

// False: the link is full, the sweep goes on later.
bool StreamSession::send_changes() {
  std::array<stream_form::Line, stream_form::MAX_LINES> lines;
  while (!link_.is_congested()) {
    const size_t n = mirror_.sweep(lines);
    if (n == 0) return true;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(lines.data());
    link_.send(Frame{Type::DATA, session_, {bytes, bytes + n * sizeof lines[0]}});
  }
  return false;
}

bool StreamSession::send_records() {
  if (records_.empty()) return false;
  if (sent_bytes_ - host_taken_bytes_ + records_.size() > stream_form::WINDOW_BYTES) return false;
  sent_bytes_ += records_.size();
  link_.send(Frame{Type::RECORDS, session_, std::exchange(records_, {})});
  return true;
}

// While the host or the link has no room, or the turn is over, a kick would change nothing: whoever
// makes room calls pump(), or next_look() has it called. False: something came meanwhile.
bool StreamSession::fall_asleep() {
  if (!records_.empty() || is_sweeping_ || link_.is_congested() || n_shares_left_ == 0) {
    store_release(host_page_->need_wakeup, 0);
    return true;
  }
  store_release(host_page_->need_wakeup, ++n_sleeps_);
  fence_full();  // as the worker does: pairs with the fence in the client's kick_if_asleep()
  wire::Header header;
  if (!commands_.peek(&header)) return true;
  store_release(host_page_->need_wakeup, 0);
  return false;
}

std::optional<StreamSession::Clock::time_point> StreamSession::next_look() const {
  // Others' turn first.
  if (n_shares_left_ == 0 && !link_.is_congested()) return Clock::time_point{};
  std::optional<Clock::time_point> next;
  if (mirror_.any_shared() && !is_sweeping_) next = next_sweep_;
  if (!waiting_.empty()) {
    next = next ? std::min(*next, next_room_look_) : next_room_look_;
  }
  return next;
}

// ---- from the host

template <typename Body>
Body StreamSession::read_body(const Frame& frame) {
  const auto body = payload_as<Body>(frame);
  if (!body) fail("a frame from the host is too short");
  return body.value_or(Body{});
}

void StreamSession::on_frame(const Frame& frame) {
  switch (frame.type) {
    case Type::DATA:
      return apply(frame);
    case Type::EVENTS:
      if (waiting_.size() + frame.payload.size() > stream_form::WINDOW_BYTES) {
        return fail("the host sent more events than it has credit for");
      }
      waiting_.insert(waiting_.end(), frame.payload.begin(), frame.payload.end());
      return;
    case Type::CREDIT: {
      const uint64_t taken = read_body<stream_form::Credit>(frame).taken_bytes;
      if (taken < host_taken_bytes_ || taken > sent_bytes_) return fail("bad credit of the host");
      host_taken_bytes_ = taken;
      return;
    }
    case Type::STATUS: {
      const auto status = read_body<stream_form::Status>(frame);
      store_relaxed(host_page_->error_position, status.error_position);
      store_relaxed(host_page_->error_opcode, status.error_opcode);
      // release: pairs with the client's acquire at the start of each call
      store_release(host_page_->error_word, status.error_word);
      return;
    }
    default:
      return fail("a frame from the host is of an unknown type");
  }
}

void StreamSession::apply(const Frame& frame) {
  stream_form::Line line;
  if (frame.payload.size() % sizeof line != 0) return fail("half a line of data from the host");
  for (size_t at = 0; at < frame.payload.size(); at += sizeof line) {
    std::memcpy(&line, frame.payload.data() + at, sizeof line);
    if (!mirror_.is_valid(line.region_off, stream_form::LINE_BYTES)) {
      return fail("data from the host for memory that is not there");
    }
    // What is no longer shared is still exchanged: it was on its way, and counts as known.
    mirror_.apply(line);
  }
}

bool StreamSession::deliver_events() {
  size_t fed = 0;
  while (fed < waiting_.size()) {
    wire::Header header{};
    const size_t left = waiting_.size() - fed;
    if (left >= sizeof header) std::memcpy(&header, waiting_.data() + fed, sizeof header);
    if (header.len_bytes < sizeof header || header.len_bytes > wire::MAX_RECORD_BYTES ||
        wire::padded(header.len_bytes) > left) {
      fail("an event of a bad length from the host");
      return false;
    }
    if (!events_.reserve(header.len_bytes)) break;
    const auto body_bytes = header.len_bytes - static_cast<uint32_t>(sizeof header);
    events_.write(header, Part{waiting_.data() + fed + sizeof header, body_bytes});
    fed += wire::padded(header.len_bytes);
  }
  const bool any = fed > 0;
  taken_bytes_ += fed;
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(fed));
  if (events_.error() != RingError::NONE) fail(to_string(events_.error()));
  room_pause_ = any ? Clock::duration(FIRST_ROOM_PAUSE)
                    : std::min<Clock::duration>(room_pause_ * 2, LAST_ROOM_PAUSE);
  next_room_look_ = Clock::now() + room_pause_;
  if (taken_bytes_ - credited_bytes_ >= stream_form::WINDOW_BYTES / 4) {
    credited_bytes_ = taken_bytes_;
    link_.send(make_frame(Type::CREDIT, session_, stream_form::Credit{taken_bytes_}));
  }
  return any;
}

}  // namespace kvgpu::agent
