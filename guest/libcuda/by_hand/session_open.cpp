// SPDX-License-Identifier: Apache-2.0
// How a session begins: socket, descriptors, mapping, greeting; and what a forked child keeps of
// it.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "address_space.h"
#include "contexts.h"
#include "host_socket.h"
#include "log.h"
#include "region_memory.h"
#include "session.h"
#include "settings.h"
#include "waiter.h"

namespace kvgpu::guest {

namespace {

CUresult other_major(uint16_t hosts) {
  log(Level::WARNING,
      "the host speaks protocol %u.x, this guest's libcuda %u.x: upgrade the %s package", hosts,
      control::PROTOCOL_MAJOR,
      hosts > control::PROTOCOL_MAJOR ? "guest's kvgpu-guest" : "host's kvgpu-host");
  return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}

// Into `out`, with its NUL; 0: CUDA_VISIBLE_DEVICES is not set. The host knows what it names.
size_t copy_visible_devices(char (&out)[control::MAX_VISIBLE_BYTES]) {
  const char* const setting = getenv("CUDA_VISIBLE_DEVICES");
  if (setting == nullptr) return 0;
  std::strncpy(out, setting, sizeof out - 1);
  return std::strlen(out) + 1;
}

// kvgpud gives a worker 30 s to start, unless its administrator has said otherwise.
constexpr int ANSWER_LIMIT_S = 120;

}  // namespace

constinit std::atomic<bool> Session::open_{false};

void Session::fork_child() {
  Trace::begin_anew_in_child();
  Session& session = get();
  // The parent has no session, and no thread that holds our locks to make one: the child may.
  if (!is_open() && session.n_opening_.load() == 0 && !Trace::is_deciding()) return;
  session.forked_.store(true, std::memory_order_relaxed);
  open_.store(false, std::memory_order_relaxed);
  // Ours only: the parent's connection stays. A child that kept them would hold the parent's
  // session open.
  for (int* fd : {&session.socket_, &session.region_fd_, &session.kick_fd_, &session.worker_fd_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

// When there are no other threads yet: a child that is forked while one of them makes the session
// would wait for it.
[[gnu::constructor]] void Session::at_load() {
  (void)get();
  (void)pthread_atfork(nullptr, nullptr, &Session::fork_child);
}

CUresult Session::open() {
  if (forked_.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  if (is_open()) return CUDA_SUCCESS;
  ++n_opening_;
  const CUresult result = open_locked();
  --n_opening_;
  return result;
}

CUresult Session::open_locked() {
  const std::lock_guard lock(open_mutex_);
  if (is_open()) return CUDA_SUCCESS;
  CUresult result = check_settings() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  every_call_waits_ = settings().sync != 0;
  if (result == CUDA_SUCCESS && !Trace::decide()) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = connect();
  if (result == CUDA_SUCCESS) result = greet();
  if (result != CUDA_SUCCESS) forget_connection();
  return result;
}

// A failed start leaves nothing behind: the next cuInit begins anew.
void Session::forget_connection() {
  for (int* fd : {&socket_, &region_fd_, &kick_fd_, &worker_fd_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  if (registers_ != nullptr) munmap(registers_, PAGE_BYTES);
  registers_ = nullptr;
  free_words_.clear();
  devices_.clear();
  kicked_.store(0, std::memory_order_relaxed);
  ended_.store(CUDA_SUCCESS);
  detached_.store(false);
}

CUresult Session::connect() {
  const uint64_t window = reserve_address_space();
  if (window == 0) {
    log(Level::WARNING,
        "no address window is free in this process (a sanitizer?): CUDA cannot be used in it");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  socket_ = connect_to_host();
  if (socket_ < 0) {
    const int error = errno;
    log(Level::WARNING, "cannot reach %s: %s. %s", host_socket_path(), strerror(error),
        host_socket_hint(error));
    return CUDA_ERROR_NO_DEVICE;
  }
  struct {
    control::FrameHeader header;
    control::Open open;
    char visible[control::MAX_VISIBLE_BYTES];
  } frame{};
  const size_t visible_bytes = copy_visible_devices(frame.visible);
  frame.header = {control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::OPEN), 0,
                  static_cast<uint32_t>(sizeof frame.open + visible_bytes), 1};
  frame.open.major = control::PROTOCOL_MAJOR;
  frame.open.minor = control::PROTOCOL_MINOR;
  frame.open.features = control::FEATURES;
  frame.open.window = window;
  frame.open.pid = static_cast<uint32_t>(getpid());
  frame.open.uid = getuid();
  std::strncpy(frame.open.comm, program_invocation_short_name, sizeof frame.open.comm - 1);
  const size_t frame_bytes = sizeof frame.header + sizeof frame.open + visible_bytes;
  if (::send(socket_, &frame, frame_bytes, MSG_NOSIGNAL) < 0) return CUDA_ERROR_NO_DEVICE;

  char buffer[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  alignas(cmsghdr) char ancillary[CMSG_SPACE(3 * sizeof(int))];
  iovec io{buffer, sizeof buffer};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof ancillary;
  const ssize_t n = receive_answer(&message);
  control::FrameHeader header{};
  if (n < 0 && errno == ETIMEDOUT) {
    log(Level::WARNING,
        "no answer from %s for %d s: see the log of kvgpud on the host (journalctl -u kvgpud)",
        host_socket_path(), ANSWER_LIMIT_S);
    return CUDA_ERROR_NO_DEVICE;
  }
  if (n < static_cast<ssize_t>(sizeof header)) {
    log(Level::WARNING, "the host closed the connection: see its session log");
    return CUDA_ERROR_NO_DEVICE;
  }
  std::memcpy(&header, buffer, sizeof header);
  if (header.type != static_cast<uint16_t>(control::Type::OPENED)) {
    return refused(buffer, static_cast<size_t>(n));
  }
  // Before anything else of it is believed.
  uint16_t major = 0;
  if (n >= static_cast<ssize_t>(sizeof header + sizeof major)) {
    std::memcpy(&major, buffer + sizeof header, sizeof major);
    if (major != control::PROTOCOL_MAJOR) return other_major(major);
  }
  control::Opened opened{};
  if (n < static_cast<ssize_t>(sizeof header + sizeof opened)) return CUDA_ERROR_NO_DEVICE;
  std::memcpy(&opened, buffer + sizeof header, sizeof opened);
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return CUDA_ERROR_NO_DEVICE;
  const size_t n_fds = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  int fds[3] = {-1, -1, -1};
  std::memcpy(fds, CMSG_DATA(rights), std::min<size_t>(n_fds, 3) * sizeof(int));
  region_fd_ = fds[0];
  if ((opened.features & control::FEATURE_DOORBELL) != 0) {
    doorbell_ = opened.doorbell;
    map_registers(fds[1]);
  } else {
    kick_fd_ = fds[1];
    worker_fd_ = fds[2];
  }
  return map(opened);
}

// An agent that is older than this library passes no registers.
void Session::map_registers(int fd) {
  if (fd < 0) return;
  void* const page = mmap(nullptr, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (page != MAP_FAILED) {
    registers_ = static_cast<std::byte*>(page);
  } else {
    log(Level::INFO, "cannot map the doorbell: %s; the agent wakes the worker", strerror(errno));
  }
}

// A signal handler of the program's does not end the wait.
ssize_t Session::receive_answer(msghdr* message) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(ANSWER_LIMIT_S);
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    pollfd answer{socket_, POLLIN, 0};
    const int n_ready = left.count() > 0 ? poll(&answer, 1, static_cast<int>(left.count())) : 0;
    if (n_ready == 0) errno = ETIMEDOUT;
    if (n_ready < 0 && errno == EINTR) continue;
    if (n_ready <= 0) return -1;
    const ssize_t n = recvmsg(socket_, message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n >= 0 || (errno != EINTR && errno != EAGAIN)) return n;
  }
}

CUresult Session::refused(const char* frame, size_t len_bytes) {
  constexpr size_t HEAD = sizeof(control::FrameHeader) + sizeof(control::Failure);
  control::Failure failure{CUDA_ERROR_NO_DEVICE};
  if (len_bytes >= HEAD) {
    std::memcpy(&failure, frame + sizeof(control::FrameHeader), sizeof failure);
    log(Level::WARNING, "the host refuses a session: %.*s", static_cast<int>(len_bytes - HEAD),
        frame + HEAD);
  }
  return failure.cuda_error == 0 ? CUDA_ERROR_NO_DEVICE : static_cast<CUresult>(failure.cuda_error);
}

CUresult Session::map(const control::Opened& opened) {
  session_id_ = opened.session;
  if (!map_region(region_fd_, opened.block_offset, BLOCK_BYTES)) {
    log(Level::WARNING, "cannot map the session's memory: %s", strerror(errno));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block_ = reinterpret_cast<std::byte*>(reserve_address_space() + opened.block_offset);
  host_page_ = reinterpret_cast<HostPage*>(block_ + HOST_PAGE_OFF);
  guest_page_ = reinterpret_cast<GuestPage*>(block_ + GUEST_PAGE_OFF);
  if (host_page_->magic != BLOCK_MAGIC) {
    log(Level::WARNING,
        "the session's memory is not what the host set up: is the ivshmem device the right one?");
    return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  }
  commands_ = Producer(block_ + COMMAND_RING_OFF, COMMAND_RING_BYTES, &host_page_->command_credit);
  events_ = Consumer(block_ + EVENT_RING_OFF, EVENT_RING_BYTES, &guest_page_->event_credit);
  RegionMemory& memory = RegionMemory::get();
  memory.find_out(slab());
  weakly_ordered_ = memory.is_weakly_ordered();
  if (weakly_ordered_) {
    commands_.set_weakly_ordered();
    events_.set_weakly_ordered();
  }
  progress_by_records_ = (host_page_->features & control::FEATURE_PROGRESS_RECORDS) != 0;
  if (progress_by_records_) {
    told_progress_.assign(N_PROGRESS_WORDS, 0);
    progress_ = told_progress_.data();
  } else {
    progress_ = reinterpret_cast<uint64_t*>(block_ + PROGRESS_OFF);
  }
  is_byte_stream_ = (host_page_->features & control::FEATURE_BYTE_STREAM) != 0;
  word_last_.assign(N_PROGRESS_WORDS, 0);
  for (uint32_t word = 0; word < N_PROGRESS_WORDS; ++word) free_words_.push_back(word);
  return CUDA_SUCCESS;
}

CUresult Session::greet() {
  std::vector<std::byte> buffer(wire::MAX_RECORD_BYTES);
  ReplyBuffer out{buffer.data(), wire::MAX_RECORD_BYTES};
  uint32_t features = control::FEATURES;
  if (registers_ == nullptr && kick_fd_ < 0) features &= ~control::FEATURE_DOORBELL;
  const wire::Hello hello{uint32_t{control::PROTOCOL_MAJOR} << 16 | control::PROTOCOL_MINOR,
                          features};
  if (const CUresult bad = call(wire::Op::HELLO, 0, &out, part(hello))) return bad;
  wire::HelloReply reply;
  std::memcpy(&reply, buffer.data(), sizeof reply);
  if (out.len_bytes < sizeof reply + reply.n_devices * sizeof(wire::DeviceInfo)) {
    return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  }
  if (reply.version >> 16 != control::PROTOCOL_MAJOR) {
    return other_major(static_cast<uint16_t>(reply.version >> 16));
  }
  minor_ = std::min(static_cast<uint16_t>(reply.version), control::PROTOCOL_MINOR);
  features_ = reply.features & control::FEATURES;
  driver_version_ = std::min(reply.driver_version, static_cast<int>(CUDA_VERSION));
  const uint64_t wanted = settings().devices;
  devices_.resize(wanted == 0 ? reply.n_devices : std::min<uint64_t>(wanted, reply.n_devices));
  for (uint32_t i = 0; i < devices_.size(); ++i) {
    wire::DeviceInfo& info = devices_[i].info;
    std::memcpy(&info, buffer.data() + sizeof reply + i * sizeof info, sizeof info);
    if (const uint64_t limit = memory_limit_bytes()) {
      info.total_bytes = std::min<uint64_t>(info.total_bytes, limit);
    }
    // The handle of the primary context exists before anybody retains it.
    Context* const context = tables().contexts.create();
    context->device = static_cast<int>(i);
    context->is_primary = true;
    context->id = next_context_id();
    devices_[i].primary = context;
  }
  log(Level::INFO, "session %u: %zu of %u devices, driver %d", session_id_, devices_.size(),
      reply.n_devices, reply.driver_version);
  open_.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
