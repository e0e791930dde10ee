// SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "log.h"

namespace kvgpu::worker {

namespace {

using Clock = std::chrono::steady_clock;
using control::Type;

constexpr int BEAT_MS = 1000;
constexpr std::chrono::seconds ANSWER_LIMIT{30};  // a kvgpud that is restarted is back by then

uid_t owner = 0;

bool send_frame(int fd, Type type, uint32_t id, const void* payload, uint32_t len_bytes) {
  char frame[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  const control::FrameHeader header{control::FRAME_MAGIC, static_cast<uint16_t>(type), 0, len_bytes,
                                    id};
  std::memcpy(frame, &header, sizeof header);
  std::memcpy(frame + sizeof header, payload, len_bytes);
  return ::send(fd, frame, sizeof header + len_bytes, MSG_NOSIGNAL) >= 0;
}

// With descriptors, at most two.
bool send_frame(int fd, Type type, uint32_t id, const void* payload, uint32_t len_bytes,
                std::span<const int> fds) {
  control::FrameHeader header{control::FRAME_MAGIC, static_cast<uint16_t>(type), 0, len_bytes, id};
  iovec io[] = {{&header, sizeof header}, {const_cast<void*>(payload), len_bytes}};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = io;
  message.msg_iovlen = 2;
  message.msg_control = ancillary;
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  return sendmsg(fd, &message, MSG_NOSIGNAL) >= 0;
}

bool send_resumed(int fd, uint32_t session_id) {
  const control::Resumed body{control::PROTOCOL_MAJOR, control::PROTOCOL_MINOR, 0};
  const int fds[] = {REGION_FD, KICK_FD};
  return send_frame(fd, Type::RESUMED, session_id, &body, sizeof body, fds);
}

// The one that came with a message, if there is one.
Descriptor descriptor_of(msghdr* message) {
  const cmsghdr* const rights = CMSG_FIRSTHDR(message);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS ||
      rights->cmsg_len < CMSG_LEN(sizeof(int))) {
    return {};
  }
  int fd;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return Descriptor(fd);
}

// Puts a descriptor that was received in its place.
bool install(int fd, int place) {
  const bool ok = dup2(fd, place) >= 0;
  close(fd);
  return ok;
}

// The region's descriptor, the kick eventfd and, where the session outlives kvgpud, the listening
// socket.
bool install_all(msghdr* message, bool has_listener) {
  const cmsghdr* const rights = CMSG_FIRSTHDR(message);
  int fds[3] = {-1, -1, -1};
  const size_t len_bytes = (has_listener ? 3 : 2) * sizeof(int);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS ||
      rights->cmsg_len != CMSG_LEN(len_bytes)) {
    return false;
  }
  std::memcpy(fds, CMSG_DATA(rights), len_bytes);
  bool ok = install(fds[0], REGION_FD);
  ok = install(fds[1], KICK_FD) && ok;
  if (has_listener) return install(fds[2], LISTENER_FD) && ok;
  close(LISTENER_FD);
  return ok;
}

}  // namespace

std::optional<Assignment> Control::wait_for_session(uint32_t n_devices) {
  const control::Prestarted waiting{control::PROTOCOL_MAJOR, control::PROTOCOL_MINOR, n_devices};
  send_frame(CONTROL_FD, Type::PRESTARTED, 0, &waiting, sizeof waiting);
  struct {
    control::FrameHeader header;
    control::Assign body;
  } frame{};
  for (;;) {
    alignas(cmsghdr) char ancillary[CMSG_SPACE(3 * sizeof(int))] = {};
    iovec io{&frame, sizeof frame};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = ancillary;
    message.msg_controllen = sizeof ancillary;
    const ssize_t n = recvmsg(CONTROL_FD, &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < static_cast<ssize_t>(sizeof frame.header)) return std::nullopt;
    if (frame.header.type == static_cast<uint16_t>(Type::END)) return std::nullopt;
    if (frame.header.type != static_cast<uint16_t>(Type::ASSIGN)) continue;
    if (n < static_cast<ssize_t>(sizeof frame) || frame.body.major != control::PROTOCOL_MAJOR ||
        !install_all(&message, frame.body.away_s != 0)) {
      log("an ASSIGN that is not understood");
      return std::nullopt;
    }
    return Assignment{frame.header.id, frame.body.region_bytes, frame.body.block_offset,
                      std::chrono::seconds(frame.body.away_s)};
  }
}

void Control::remember_owner() { owner = geteuid(); }

void Control::ready(uint32_t n_devices) {
  const control::Ready body{n_devices};
  send_frame(CONTROL_FD, Type::READY, session_id_, &body, sizeof body);
}

void Control::report_failure(CUresult error, const std::string& reason) {
  char payload[1024];
  const control::Failure failure{static_cast<int32_t>(error)};
  const size_t n = std::min(reason.size(), sizeof payload - sizeof failure);
  std::memcpy(payload, &failure, sizeof failure);
  std::memcpy(payload + sizeof failure, reason.data(), n);
  send_frame(CONTROL_FD, Type::FAILED, 0, payload, static_cast<uint32_t>(sizeof failure + n));
}

// If kvgpud is away this fails, and take_over() asks again.
uint32_t Control::ask(Type type, const Question& question) {
  const uint32_t request = next_request_++;
  const Request asked{type, question, false};
  unanswered_[request] = asked;
  send_frame(CONTROL_FD, type, request, &asked.question, asked.len_bytes());
  return request;
}

bool Control::allocate_extent(uint64_t bytes, control::Extent* extent) {
  std::unique_lock lock(mutex_);
  const uint32_t request = ask(Type::EXTENT_ALLOC, {.value = bytes});
  if (!answered_.wait_for(lock, ANSWER_LIMIT, [&] { return answers_.contains(request); })) {
    log("no pinned memory: kvgpud has not answered for %lld s",
        static_cast<long long>(ANSWER_LIMIT.count()));
    unanswered_[request].abandoned = true;
    return false;
  }
  *extent = answers_[request];
  answers_.erase(request);
  return extent->bytes >= bytes;
}

void Control::free_extent(uint64_t offset) {
  const std::lock_guard lock(mutex_);
  unanswered_[ask(Type::EXTENT_FREE, {.value = offset})].abandoned = true;
}

std::string Control::serve(Measure measure, Report report) {
  report_ = std::move(report);
  std::thread([this, measure = std::move(measure)] { answer_usage(measure); }).detach();
  while (read_frames()) {
    if (away_limit_.count() == 0) return "kvgpud is gone";
    log("kvgpud is gone; the session goes on for %lld s without it",
        static_cast<long long>(away_limit_.count()));
    if (!wait_for_kvgpud()) return "no kvgpud has come";
    log("kvgpud is back");
  }
  return "closed by kvgpud";
}

bool Control::read_frames() {
  alignas(8) char frame[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  for (;;) {
    beat();
    pollfd readable{CONTROL_FD, POLLIN, 0};
    if (poll(&readable, 1, BEAT_MS) <= 0) continue;
    alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
    iovec io{frame, sizeof frame};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = ancillary;
    message.msg_controllen = sizeof ancillary;
    const ssize_t n = recvmsg(CONTROL_FD, &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    Descriptor descriptor = descriptor_of(&message);
    control::FrameHeader header;
    if (static_cast<size_t>(n) < sizeof header) continue;
    std::memcpy(&header, frame, sizeof header);
    header.len_bytes = static_cast<uint32_t>(static_cast<size_t>(n) - sizeof header);
    if (header.type == static_cast<uint16_t>(Type::END)) return false;
    on_frame(header, frame + sizeof header, std::move(descriptor));
  }
}

void Control::on_frame(const control::FrameHeader& header, const char* payload,
                       Descriptor descriptor) {
  const auto read = [&](auto* body) {
    if (header.len_bytes < sizeof *body) return false;
    std::memcpy(body, payload, sizeof *body);
    return true;
  };
  control::Extent extent;
  control::Resolve asked;
  control::Resolved answer;
  switch (static_cast<Type>(header.type)) {
    case Type::EXTENT:
      if (read(&extent)) return on_extent(header.id, extent);
      break;
    case Type::RESOLVE:
      if (read(&asked)) return on_resolve(header.id, asked);
      break;
    case Type::RESOLVED:
      if (read(&answer)) return on_resolved(header.id, answer, std::move(descriptor));
      break;
    case Type::USAGE_QUERY: {
      const std::lock_guard lock(mutex_);
      usage_query_ = header.id;
      usage_wanted_.notify_one();
      return;
    }
    case Type::ACTIVITY_QUERY:
      return answer_activity(header.id);
    default:
      break;
  }
  log("control frame of type %u ignored", header.type);
}

// Another session of the VM asks.
void Control::on_resolve(uint32_t request, const control::Resolve& asked) {
  wire::Token token;
  std::memcpy(&token, asked.token, sizeof token);
  const Share share = shares.get(token);
  control::Resolved answer{static_cast<uint32_t>(share.kind), 0, {}};
  std::memcpy(answer.content, share.content.data(), sizeof answer.content);
  const int fd = share.descriptor.get();
  const std::lock_guard lock(mutex_);
  if (fd < 0) {
    send_frame(CONTROL_FD, Type::RESOLVED, request, &answer, sizeof answer);
  } else {
    send_frame(CONTROL_FD, Type::RESOLVED, request, &answer, sizeof answer, {&fd, 1});
  }
}

void Control::on_resolved(uint32_t request, const control::Resolved& answer,
                          Descriptor descriptor) {
  const std::lock_guard lock(mutex_);
  const auto found = unanswered_.extract(request);
  if (found.empty() || found.mapped().abandoned) return;
  Share& share = resolved_[request];
  share.kind = static_cast<ShareKind>(answer.kind);
  std::memcpy(share.content.data(), answer.content, sizeof answer.content);
  share.descriptor = std::move(descriptor);
  answered_.notify_all();
}

Share Control::resolve(const wire::Token& token) {
  if (shares.is_own(token)) return shares.get(token);
  Question question{};
  std::memcpy(question.resolve.token, &token, sizeof token);
  std::unique_lock lock(mutex_);
  const uint32_t request = ask(Type::RESOLVE, question);
  if (!answered_.wait_for(lock, ANSWER_LIMIT, [&] { return resolved_.contains(request); })) {
    log("what session %u has shared is not to be had: no answer for %lld s", token.session,
        static_cast<long long>(ANSWER_LIMIT.count()));
    unanswered_[request].abandoned = true;
    return {};
  }
  Share share = std::move(resolved_[request]);
  resolved_.erase(request);
  if (share.kind == ShareKind::NONE) log("session %u has shared no such thing", token.session);
  return share;
}

void Control::answer_usage(const Measure& measure) {
  for (;;) {
    std::unique_lock lock(mutex_);
    usage_wanted_.wait(lock, [this] { return usage_query_.has_value(); });
    const uint32_t query = *std::exchange(usage_query_, std::nullopt);
    lock.unlock();
    const std::vector<control::DeviceUsage> usage = measure();
    lock.lock();
    send_frame(CONTROL_FD, Type::USAGE, query, usage.data(),
               static_cast<uint32_t>(usage.size() * sizeof usage[0]));
  }
}

void Control::answer_activity(uint32_t query) {
  const std::vector<std::byte> activity = report_();
  const std::lock_guard lock(mutex_);
  send_frame(CONTROL_FD, Type::ACTIVITY, query, activity.data(),
             static_cast<uint32_t>(activity.size()));
}

void Control::on_extent(uint32_t request, const control::Extent& extent) {
  const std::lock_guard lock(mutex_);
  const auto found = unanswered_.extract(request);
  if (found.empty()) return;  // answered by the earlier kvgpud, too
  if (!found.mapped().abandoned) {
    answers_[request] = extent;
    answered_.notify_all();
  } else if (found.mapped().type == Type::EXTENT_ALLOC && extent.bytes != 0) {
    unanswered_[ask(Type::EXTENT_FREE, {.value = extent.offset})].abandoned = true;
  }
}

bool Control::wait_for_kvgpud() {
  const auto deadline = Clock::now() + away_limit_;
  while (Clock::now() < deadline) {
    beat();
    pollfd readable{LISTENER_FD, POLLIN, 0};
    if (poll(&readable, 1, BEAT_MS) <= 0) continue;
    const int connection = accept4(LISTENER_FD, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    const bool ours = take_over(connection);
    close(connection);
    if (ours) return true;
  }
  return false;
}

bool Control::take_over(int connection) {
  ucred peer{};
  socklen_t len_bytes = sizeof peer;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &len_bytes) != 0 ||
      peer.uid != owner) {
    log("a process of uid %u is not listened to", peer.uid);
    return false;
  }
  // Nothing may be said before RESUMED: whoever sends on CONTROL_FD holds the mutex, but for
  // report_failure(), after which there is nothing to say.
  const std::lock_guard lock(mutex_);
  if (!send_resumed(connection, session_id_) || dup2(connection, CONTROL_FD) < 0) return false;
  for (const auto& [request, asked] : unanswered_) {
    send_frame(CONTROL_FD, asked.type, request, &asked.question, asked.len_bytes());
  }
  return true;
}

}  // namespace kvgpu::worker
