// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "address_space.h"
#include "log.h"
#include "waiter.h"

namespace kvgpu::guest {

namespace {

thread_local bool this_thread_runs_a_callback = false;

const char* socket_path() {
  const char* path = std::getenv(control::SOCKET_ENV);
  return path != nullptr ? path : control::GUEST_SOCKET;
}

}  // namespace

Session& Session::get() {
  static auto& session = *new Session;
  return session;
}

bool Session::in_callback() { return this_thread_runs_a_callback; }

void Session::fork_child() {
  Session& session = get();
  session.forked_.store(true, std::memory_order_relaxed);
  session.open_.store(false, std::memory_order_relaxed);
  // Ours only: the parent's connection stays. A child that kept them would hold the parent's
  // session open.
  for (int* fd : {&session.socket_, &session.region_fd_, &session.kick_fd_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

CUresult Session::open() {
  if (forked_.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  if (is_open()) return CUDA_SUCCESS;
  const std::lock_guard lock(open_mutex_);
  if (is_open()) return CUDA_SUCCESS;
  CUresult result = connect();
  if (result == CUDA_SUCCESS) result = greet();
  if (result != CUDA_SUCCESS) {
    forget_connection();
    return result;
  }
  static const int registered = pthread_atfork(nullptr, nullptr, &Session::fork_child);
  (void)registered;
  return CUDA_SUCCESS;
}

// A failed start leaves nothing behind: the next cuInit begins anew.
void Session::forget_connection() {
  for (int* fd : {&socket_, &region_fd_, &kick_fd_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  free_words_.clear();
  devices_.clear();
  kicked_.store(0, std::memory_order_relaxed);
  ended_.store(CUDA_SUCCESS);
}

CUresult Session::connect() {
  const uint64_t window = reserve_address_space();
  if (window == 0) {
    log(Level::WARNING,
        "no address window is free in this process (a sanitizer?): CUDA cannot be used in it");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path(), sizeof address.sun_path - 1);
  socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket_ < 0 ||
      ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    log(Level::WARNING,
        "cannot reach %s: %s. Is kvgpu-agentd running (systemctl status kvgpu-agentd)?",
        socket_path(), strerror(errno));
    return CUDA_ERROR_NO_DEVICE;
  }
  struct {
    control::FrameHeader header;
    control::Open open;
  } frame{};
  frame.header = {control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::OPEN), 0,
                  sizeof frame.open, 1};
  frame.open.major = control::PROTOCOL_MAJOR;
  frame.open.minor = control::PROTOCOL_MINOR;
  frame.open.features = control::FEATURES;
  frame.open.window = window;
  frame.open.pid = static_cast<uint32_t>(getpid());
  frame.open.uid = getuid();
  std::strncpy(frame.open.comm, program_invocation_short_name, sizeof frame.open.comm - 1);
  if (::send(socket_, &frame, sizeof frame, MSG_NOSIGNAL) < 0) return CUDA_ERROR_NO_DEVICE;

  char buffer[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  alignas(cmsghdr) char ancillary[CMSG_SPACE(2 * sizeof(int))];
  iovec io{buffer, sizeof buffer};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof ancillary;
  const ssize_t n = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
  control::FrameHeader header{};
  if (n < static_cast<ssize_t>(sizeof header)) {
    log(Level::WARNING, "the host closed the connection: see its session log");
    return CUDA_ERROR_NO_DEVICE;
  }
  std::memcpy(&header, buffer, sizeof header);
  if (header.type != static_cast<uint16_t>(control::Type::OPENED)) {
    return refused(buffer, static_cast<size_t>(n));
  }
  control::Opened opened{};
  if (n < static_cast<ssize_t>(sizeof header + sizeof opened)) return CUDA_ERROR_NO_DEVICE;
  std::memcpy(&opened, buffer + sizeof header, sizeof opened);
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return CUDA_ERROR_NO_DEVICE;
  const size_t n_fds = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  int fds[2] = {-1, -1};
  std::memcpy(fds, CMSG_DATA(rights), std::min<size_t>(n_fds, 2) * sizeof(int));
  region_fd_ = fds[0];
  kick_fd_ = fds[1];
  return map(opened);
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
  if (opened.major != control::PROTOCOL_MAJOR) {
    log(Level::WARNING, "the host speaks protocol %u, this guest %u: upgrade the %s package",
        opened.major, control::PROTOCOL_MAJOR,
        opened.major > control::PROTOCOL_MAJOR ? "kvgpu-guest" : "kvgpu-host");
    return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  }
  if (!map_region(region_fd_, opened.block_offset, BLOCK_BYTES)) {
    log(Level::WARNING, "cannot map the session's memory: %s", strerror(errno));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block_ = reinterpret_cast<std::byte*>(reserve_address_space() + opened.block_offset);
  host_page_ = reinterpret_cast<HostPage*>(block_ + HOST_PAGE_OFF);
  guest_page_ = reinterpret_cast<GuestPage*>(block_ + GUEST_PAGE_OFF);
  progress_ = reinterpret_cast<uint64_t*>(block_ + PROGRESS_OFF);
  if (host_page_->magic != BLOCK_MAGIC) {
    log(Level::WARNING,
        "the session's memory is not what the host set up: is the ivshmem device the right one?");
    return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  }
  commands_ = Producer(block_ + COMMAND_RING_OFF, COMMAND_RING_BYTES, &host_page_->command_credit);
  events_ = Consumer(block_ + EVENT_RING_OFF, EVENT_RING_BYTES, &guest_page_->event_credit);
  progress_by_records_ = (host_page_->features & control::FEATURE_PROGRESS_RECORDS) != 0;
  word_last_.assign(N_PROGRESS_WORDS, 0);
  for (uint32_t word = 0; word < N_PROGRESS_WORDS; ++word) free_words_.push_back(word);
  return CUDA_SUCCESS;
}

CUresult Session::greet() {
  std::vector<std::byte> buffer(wire::MAX_RECORD_BYTES);
  ReplyBuffer out{buffer.data(), wire::MAX_RECORD_BYTES};
  const wire::Hello hello{uint32_t{control::PROTOCOL_MAJOR} << 16 | control::PROTOCOL_MINOR,
                          control::FEATURES};
  if (const CUresult bad = call(wire::Op::HELLO, 0, &out, part(hello))) return bad;
  wire::HelloReply reply;
  std::memcpy(&reply, buffer.data(), sizeof reply);
  if (out.len_bytes < sizeof reply + reply.n_devices * sizeof(wire::DeviceInfo)) {
    return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  }
  driver_version_ = std::min(reply.driver_version, static_cast<int>(CUDA_VERSION));
  devices_.resize(reply.n_devices);
  for (uint32_t i = 0; i < reply.n_devices; ++i) {
    std::memcpy(&devices_[i].info, buffer.data() + sizeof reply + i * sizeof(wire::DeviceInfo),
                sizeof(wire::DeviceInfo));
    // The handle of the primary context exists before anybody retains it.
    Context* const context = tables().contexts.create();
    context->device = static_cast<int>(i);
    context->id = i + 1;
    devices_[i].primary = context;
  }
  open_.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

// ---- sending

CUresult Session::wait_for_room(uint32_t len_bytes) {
  SpinThenSleep wait;
  kick_if_asleep();
  while (!commands_.reserve(len_bytes)) {
    if (commands_.error() != RingError::NONE) {
      end(CUDA_ERROR_UNKNOWN, to_string(commands_.error()));
    }
    if (const CUresult over = ended_error()) return over;
    pump();  // the worker may be waiting for room on its side
    if (wait.step()) check_connection();
  }
  return CUDA_SUCCESS;
}

void Session::kick_if_asleep() {
  fence_full();  // our commit before our look: pairs with the worker's fence in
                 // sleep_until_kicked()
  // Each sleep has its own number: one kick each is enough.
  const uint64_t sleep = load_relaxed(host_page_->need_wakeup);
  if (sleep == 0 || kicked_.exchange(sleep, std::memory_order_relaxed) == sleep) return;
  if (kick_fd_ >= 0) {
    (void)!eventfd_write(kick_fd_, 1);
    return;
  }
  const control::FrameHeader kick{control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::KICK),
                                  0, 0, session_id_};
  (void)!::send(socket_, &kick, sizeof kick, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// ---- replies and events

uint64_t Session::expect(Pending* pending) {
  const std::lock_guard lock(pending_mutex_);
  const uint64_t call_id = next_call_id_++;
  pending_.emplace(call_id, pending);
  return call_id;
}

CUresult Session::abandon(uint64_t call_id, CUresult result) {
  const std::lock_guard lock(pending_mutex_);
  pending_.erase(call_id);
  return result;
}

CUresult Session::wait_reply(uint64_t call_id, Pending* pending) {
  SpinThenSleep wait;
  for (;;) {
    pump();
    // acquire: pairs with the release in dispatch()
    if (pending->done.load(std::memory_order_acquire)) return reply_result(*pending);
    if (wait.step()) check_connection();
    if (const CUresult over = ended_error()) {
      pump();
      if (pending->done.load(std::memory_order_acquire)) return pending->result;
      return abandon(call_id, over);
    }
  }
}

// A reply that carries the session's deferred error has told it to the program: it is acknowledged
// with it.
CUresult Session::reply_result(const Pending& pending) {
  if (pending.result != CUDA_SUCCESS && is_open()) {
    const uint64_t word = load_acquire(host_page_->error_word);
    if (word != acknowledged_.load(std::memory_order_relaxed) &&
        static_cast<CUresult>(ErrorWord::error(word)) == pending.result) {
      (void)take_error();
    }
  }
  return pending.result;
}

void Session::pump() {
  const std::unique_lock lock(event_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  wire::Header header;
  alignas(8) std::byte record[wire::MAX_RECORD_BYTES];
  while (events_.peek(&header)) {
    events_.take(header, record);
    dispatch(header, record + sizeof header, header.len_bytes - sizeof header);
  }
  if (events_.error() != RingError::NONE) end(CUDA_ERROR_UNKNOWN, to_string(events_.error()));
  if (events_.unpublished()) events_.publish();
}

void Session::dispatch(const wire::Header& header, const std::byte* body, uint32_t len_bytes) {
  switch (static_cast<wire::Op>(header.opcode)) {
    case wire::Op::REPLY: {
      wire::Reply reply;
      std::memcpy(&reply, body, sizeof reply);
      const std::lock_guard lock(pending_mutex_);
      const auto found = pending_.extract(header.call_id);
      if (found.empty()) return;  // its caller has given up
      Pending& pending = *found.mapped();
      if (pending.out != nullptr) {
        const uint32_t n = len_bytes - static_cast<uint32_t>(sizeof reply);
        pending.out->len_bytes = std::min(n, pending.out->capacity_bytes);
        std::memcpy(pending.out->data, body + sizeof reply, pending.out->len_bytes);
      }
      pending.result = static_cast<CUresult>(reply.result);
      pending.done.store(true, std::memory_order_release);
      return;
    }
    case wire::Op::CALLBACK: {
      const std::lock_guard lock(callback_mutex_);
      std::memcpy(&callbacks_.emplace_back(), body, sizeof(wire::Callback));
      callback_wanted_.notify_all();
      return;
    }
    case wire::Op::PROGRESS: {
      wire::Progress progress;
      std::memcpy(&progress, body, sizeof progress);
      if (progress.word < N_PROGRESS_WORDS)
        store_release(progress_[progress.word], progress.number);
      return;
    }
    case wire::Op::OUTPUT: {
      wire::Output output;
      std::memcpy(&output, body, sizeof output);
      std::fwrite(body + sizeof output, 1,
                  std::min<size_t>(output.len_bytes, len_bytes - sizeof output), stdout);
      std::fflush(stdout);
      return;
    }
    default:
      log(Level::DEBUG, "event %u ignored", header.opcode);
  }
}

// ---- the end

void Session::check_connection() {
  char buffer[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  const ssize_t n = recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  constexpr ssize_t HEAD = sizeof(control::FrameHeader) + sizeof(control::Failure);
  control::FrameHeader header{};
  if (n >= HEAD) std::memcpy(&header, buffer, sizeof header);
  if (header.type == static_cast<uint16_t>(control::Type::CLOSED)) {
    control::Failure failure;
    std::memcpy(&failure, buffer + sizeof header, sizeof failure);
    const std::string reason(buffer + HEAD, static_cast<size_t>(n - HEAD));
    end(failure.cuda_error != 0 ? static_cast<CUresult>(failure.cuda_error) : CUDA_ERROR_UNKNOWN,
        reason.c_str());
  } else if (n <= 0) {
    end(CUDA_ERROR_UNKNOWN, "the connection to the host is gone");
  }
}

void Session::end(CUresult error, const char* reason) {
  CUresult none = CUDA_SUCCESS;
  if (ended_.compare_exchange_strong(none, error)) {
    log(Level::WARNING, "the session has ended: %s", reason);
    const std::lock_guard lock(callback_mutex_);
    callback_wanted_.notify_all();
  }
}

CUresult Session::take_error() {
  if (const CUresult over = ended_error()) return over;
  const std::lock_guard lock(error_mutex_);
  const uint64_t word = load_acquire(host_page_->error_word);
  if (word == acknowledged_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  const auto error = static_cast<CUresult>(ErrorWord::error(word));
  log(Level::DEBUG, "deferred error %d of opcode %llu", error,
      static_cast<unsigned long long>(host_page_->error_opcode));
  if (ErrorWord::sticky(word)) return error;  // stays: never acknowledged
  if (const CUresult bad = acknowledge(word, error)) return bad;
  acknowledged_.store(word, std::memory_order_relaxed);
  return error;
}

// No record may come between the look at the numbers and the acknowledgement: it would be skipped
// and not be found lost.
CUresult Session::acknowledge(uint64_t word, CUresult error) {
  wire::Header header{};
  header.opcode = static_cast<uint16_t>(wire::Op::ACK_ERROR);
  header.flags = wire::NOREPLY;
  const wire::AckError ack{ErrorWord::epoch(word)};
  {
    const std::lock_guard lock(command_mutex_);
    if (const CUresult bad = wait_for_room(sizeof header + sizeof ack)) return bad;
    mark_lost(error);
    commands_.write(header, part(ack));
  }
  kick_if_asleep();
  return CUDA_SUCCESS;
}

// What had been asked for and not been reached when the error was found may never be written:
// whoever waits for it gets the error. Work before the failing record may be among it; an error too
// many is the safe side.
void Session::mark_lost(CUresult error) {
  const std::lock_guard lock(word_mutex_);
  for (uint32_t word = 0; word < N_PROGRESS_WORDS; ++word) {
    const uint64_t last =
        std::atomic_ref<uint64_t>(word_last_[word]).load(std::memory_order_relaxed);
    const uint64_t now = load_acquire(progress_[word]);
    if (now < last) lost_[word] = {now, last, error};
  }
  any_lost_.store(true, std::memory_order_release);
}

// ---- progress

uint32_t Session::allocate_word(uint64_t* first_number) {
  const std::lock_guard lock(word_mutex_);
  // A word whose last number is still to be written could be set back by it.
  for (size_t i = 0; i < free_words_.size(); ++i) {
    const uint32_t word = free_words_.front();
    free_words_.pop_front();
    if (reached(word, word_last_[word])) {
      *first_number = word_last_[word];
      return word;
    }
    free_words_.push_back(word);
  }
  return N_PROGRESS_WORDS;
}

void Session::free_word(uint32_t word, uint64_t last_number) {
  const std::lock_guard lock(word_mutex_);
  word_last_[word] = last_number;
  free_words_.push_back(word);
}

CUresult Session::query(uint32_t word, uint64_t number) {
  if (any_lost_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(word_mutex_);
    const auto lost = lost_.find(word);
    if (lost != lost_.end() && number > lost->second.from && number <= lost->second.to) {
      return lost->second.error;
    }
  }
  if (reached(word, number)) return CUDA_SUCCESS;
  if (progress_by_records_) pump();
  if (const CUresult pending = pending_error()) return pending;
  // A program may poll for ever: now and then look whether anybody is there.
  thread_local unsigned n_queries = 0;
  if (++n_queries % 1024 == 0) check_connection();
  return CUDA_ERROR_NOT_READY;
}

bool Session::is_lost(uint32_t word, uint64_t number) {
  if (!any_lost_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(word_mutex_);
  const auto lost = lost_.find(word);
  return lost != lost_.end() && number > lost->second.from && number <= lost->second.to;
}

CUresult Session::wait(uint32_t word, uint64_t number) {
  SpinThenSleep wait;
  for (;;) {
    const CUresult result = query(word, number);
    if (result != CUDA_ERROR_NOT_READY) return result;
    if (wait.step()) {
      pump();
      check_connection();
    }
  }
}

// ---- host functions

uint64_t Session::add_host_function(HostFunction function, bool once) {
  const std::lock_guard lock(callback_mutex_);
  const uint64_t id = next_host_function_++;
  host_functions_.emplace(id, HostEntry{std::move(function), once});
  if (once) ++expected_callbacks_;
  if (!callback_thread_runs_) {
    callback_thread_runs_ = true;
    std::thread(&Session::run_callbacks, this).detach();
  }
  callback_wanted_.notify_all();
  return id;
}

void Session::expect_callbacks(uint64_t n) {
  if (n == 0) return;
  const std::lock_guard lock(callback_mutex_);
  expected_callbacks_ += n;
  callback_wanted_.notify_all();
}

// One at a time, as the driver does. While one is expected this thread looks at the event ring
// itself: no other may be there.
void Session::run_callbacks() {
  this_thread_runs_a_callback = true;
  std::unique_lock lock(callback_mutex_);
  while (ended_error() == CUDA_SUCCESS) {
    callback_wanted_.wait(lock, [this] { return expected_callbacks_ > 0 || ended_error(); });
    SpinThenSleep wait;
    while (callbacks_.empty() && ended_error() == CUDA_SUCCESS) {
      lock.unlock();
      pump();
      if (wait.step()) check_connection();
      lock.lock();
    }
    if (callbacks_.empty()) return;
    const wire::Callback callback = callbacks_.front();
    callbacks_.pop_front();
    --expected_callbacks_;
    const auto entry = host_functions_.find(callback.function);
    HostFunction function = entry != host_functions_.end() ? entry->second.function : nullptr;
    if (entry != host_functions_.end() && entry->second.once) host_functions_.erase(entry);
    lock.unlock();
    if (function) function(static_cast<CUresult>(callback.status));
    // release: pairs with the worker's acquire in Callbacks::relay(); what the function wrote is
    // visible
    store_release(guest_page_->callback_done, callback.token);
    lock.lock();
  }
}

}  // namespace kvgpu::guest
