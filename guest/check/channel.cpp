// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "checks.h"
#include "kvgpu/layout.h"
#include "memory_type.h"
#include "streaming.h"

namespace kvgpu::check {

namespace {

constexpr time_t ANSWER_LIMIT_S = 30;  // the agent holds an OPEN for less than this
constexpr size_t COPY_BYTES = 1 << 20;

const char* socket_path() {
  const char* path = std::getenv(control::SOCKET_ENV);
  return path != nullptr ? path : control::GUEST_SOCKET;
}

std::string version(uint16_t major, uint16_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

// Gigabytes per second of the best of some copies.
template <typename Copy>
double copy_gb_per_s(Copy copy) {
  constexpr int COPIES = 4;
  double best = 0;
  for (int i = 0; i < COPIES; ++i) {
    const auto start = std::chrono::steady_clock::now();
    copy();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, COPY_BYTES / std::max(took.count(), 1.0));
  }
  return best;
}

}  // namespace

Channel::~Channel() {
  if (block_ != nullptr) munmap(block_, BLOCK_BYTES);
  if (region_fd_ >= 0) close(region_fd_);
  if (kick_fd_ >= 0) close(kick_fd_);
  if (socket_ >= 0) close(socket_);
}

Result Channel::open() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path(), sizeof address.sun_path - 1);
  socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const timeval limit{ANSWER_LIMIT_S, 0};
  if (socket_ < 0 || setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
      connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    return failed(
        "cannot reach " + std::string(socket_path()) + ": " + std::strerror(error),
        error == EACCES
            ? "add this user to the group kvgpu (adduser USER kvgpu), log in again"
            : "start the agent: systemctl start kvgpu-agentd; journalctl -u kvgpu-agentd");
  }
  struct {
    control::FrameHeader header;
    control::Open open;
  } frame{};
  frame.header = {control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::OPEN), 0,
                  sizeof frame.open, 1};
  frame.open = {control::PROTOCOL_MAJOR,
                control::PROTOCOL_MINOR,
                control::FEATURES,
                WINDOWS[0],
                uint32_t(getpid()),
                getuid(),
                "kvgpu-check"};
  if (send(socket_, &frame, sizeof frame, MSG_NOSIGNAL) < 0) {
    return failed("the agent hung up", "see journalctl -u kvgpu-agentd");
  }
  char buffer[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  alignas(cmsghdr) char ancillary[CMSG_SPACE(4 * sizeof(int))];
  iovec io{buffer, sizeof buffer};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof ancillary;
  const ssize_t n = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
  if (n < 0) {
    return failed("the agent does not answer within " + std::to_string(ANSWER_LIMIT_S) + " s",
                  "is kvgpud running on the host? See journalctl -u kvgpu-agentd");
  }
  const cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  if (rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
    int fds[2] = {-1, -1};
    std::memcpy(fds, CMSG_DATA(rights),
                std::min<size_t>(rights->cmsg_len - CMSG_LEN(0), sizeof fds));
    region_fd_ = fds[0];
    kick_fd_ = fds[1];
  }
  return read_answer(buffer, static_cast<size_t>(n));
}

Result Channel::read_answer(const char* frame, size_t len_bytes) {
  control::FrameHeader header{};
  std::memcpy(&header, frame, std::min(len_bytes, sizeof header));
  constexpr size_t FAILURE_BYTES = sizeof header + sizeof(control::Failure);
  if (header.type != static_cast<uint16_t>(control::Type::OPENED)) {
    const std::string reason(frame + std::min(len_bytes, FAILURE_BYTES), frame + len_bytes);
    return failed("no session: " + (reason.empty() ? "the agent hung up" : reason),
                  "see journalctl -u kvgpu-agentd, and on the host journalctl -u kvgpud");
  }
  if (len_bytes < sizeof header + sizeof opened_) {
    return failed("the answer is too short", "upgrade kvgpu-guest and kvgpu-host to one version");
  }
  std::memcpy(&opened_, frame + sizeof header, sizeof opened_);
  return ok(std::string(socket_path()) + ", session " + std::to_string(opened_.session));
}

Result Channel::check_region() {
  if (region_fd_ < 0) {
    return failed("the agent passed no memory", "see journalctl -u kvgpu-agentd");
  }
  void* const block = mmap(nullptr, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, region_fd_,
                           static_cast<off_t>(opened_.block_offset));
  if (block == MAP_FAILED) {
    return failed("cannot map the session's block: " + std::string(std::strerror(errno)),
                  "is the ivshmem device's BAR 2 enabled? See dmesg");
  }
  block_ = static_cast<std::byte*>(block);
  if (reinterpret_cast<const HostPage*>(block_ + HOST_PAGE_OFF)->magic != BLOCK_MAGIC) {
    return failed("the block is not what the host set up",
                  "the device shows other memory than kvgpud's: restart the VM");
  }
  const std::string found = std::to_string(opened_.region_bytes >> 20) + " MiB, block at " +
                            std::to_string(opened_.block_offset >> 20) + " MiB mapped";
  return ok(is_byte_stream() ? found + "; not shared with the host: byte-stream form" : found);
}

Result Channel::check_memory() {
  if (block_ == nullptr) return skipped("no region");
  if (is_byte_stream()) return skipped("the guest's own: what changes is sent to the host");
  std::byte* const slab = block_ + SLAB_OFF;
  const memory::Measured measured = memory::measure(slab);
  std::vector<std::byte> own(COPY_BYTES, std::byte{1});
  const bool cached = measured.type == memory::Type::WRITE_BACK;
  const auto copy = [cached](void* to, const void* from, bool in) {
    if (cached) {
      std::memcpy(to, from, COPY_BYTES);
    } else {
      (in ? memory::stream_in : memory::stream_out)(to, from, COPY_BYTES);
    }
  };
  const double in = copy_gb_per_s([&] { copy(slab, own.data(), true); });
  const double out = copy_gb_per_s([&] { copy(own.data(), slab, false); });
  char text[160];
  (void)std::snprintf(text, sizeof text, "%s; copies in %.1f GB/s, out %.1f GB/s%s",
                      std::string(memory::to_string(measured.type)).c_str(), in, out,
                      cached ? "" : " (streaming)");
  return ok(text);
}

Result Channel::check_kick() {
  if (is_byte_stream()) return ok("the host's end of the port wakes it");
  if ((opened_.features & control::FEATURE_DOORBELL) == 0) {
    if (kick_fd_ >= 0) return ok("an eventfd of the host");
    return ok("through kvgpu-agentd and kvgpud",
              "programs that often wait start their GPU work sooner with a doorbell: the host's "
              "administrator gives the VM one with kvgpu vm attach --doorbell");
  }
  void* const page =
      kick_fd_ < 0 ? MAP_FAILED : mmap(nullptr, PAGE_BYTES, PROT_WRITE, MAP_SHARED, kick_fd_, 0);
  if (page == MAP_FAILED) {
    return failed("the device's registers cannot be mapped",
                  "upgrade kvgpu-guest, or is Secure Boot's lockdown on? Programs wake their "
                  "workers through kvgpu-agentd meanwhile");
  }
  munmap(page, PAGE_BYTES);
  return ok("doorbell of the ivshmem device, " + std::to_string(opened_.doorbell >> 16));
}

Result Channel::check_host() {
  const std::string found =
      "kvgpu protocol " + version(opened_.major, opened_.minor) +
      " (this guest: " + version(control::PROTOCOL_MAJOR, control::PROTOCOL_MINOR) + ")";
  if (opened_.major == control::PROTOCOL_MAJOR) return ok(found);
  return failed(found, opened_.major > control::PROTOCOL_MAJOR ? "upgrade kvgpu-guest in this VM"
                                                               : "upgrade kvgpu-host on the host");
}

}  // namespace kvgpu::check
