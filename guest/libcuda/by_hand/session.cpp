// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "address_space.h"
#include "log.h"
#include "waiter.h"

namespace kvgpu::guest {

Session& Session::make() {
  static auto& session = *new Session;
  made_.store(&session, std::memory_order_release);
  return session;
}

// ---- sending

// `lock` is free meanwhile.
CUresult Session::wait_for_room(uint32_t len_bytes, std::unique_lock<ShortLock>* lock) {
  SpinThenSleep wait(SpinThenSleep::For::ROOM);
  // The lock is held, and what write_freed() has committed was not kicked for: pairs with the
  // worker's fence in sleep_until_kicked().
  fence_full();
  kick_if_asleep();
  do {
    if (commands_.error() != RingError::NONE) {
      end(CUDA_ERROR_UNKNOWN, to_string(commands_.error()));
    }
    const bool is_shared = commands_.is_shared();
    const uint64_t credit = commands_.credit();
    if (lock != nullptr) lock->unlock();
    CUresult over;
    do {
      over = ended_error();
      if (over != CUDA_SUCCESS) break;
      pump();  // the worker may be waiting for room on its side
      if (wait.step()) check_connection();
    } while (!is_shared && commands_.credit_now() == credit);
    if (lock != nullptr) lock->lock();
    if (over != CUDA_SUCCESS) return over;
    commands_.end_share();
  } while (!commands_.reserve(len_bytes));
  if (wait.in_company()) commands_.begin_share(SHARE_BYTES + 2 * wire::padded(len_bytes));
  return CUDA_SUCCESS;
}

void Session::kick_if_asleep() {
  // Our commit before our look: pairs with the worker's fence in sleep_until_kicked(). To give the
  // lock back was a full fence for memory that is not write-combining.
  if (weakly_ordered_) [[unlikely]]
    memory_fence();
  // Each sleep has its own number: one kick each is enough.
  const uint64_t sleep = load_relaxed(host_page_->need_wakeup);
  if (sleep == 0 || kicked_.exchange(sleep, std::memory_order_relaxed) == sleep) return;
  kick();
}

void Session::kick() {
  if (registers_ != nullptr) {
    *reinterpret_cast<volatile uint32_t*>(registers_ + DOORBELL_REGISTER_OFF) = doorbell_;
    return;
  }
  if (kick_fd_ >= 0) {
    (void)!eventfd_write(kick_fd_, 1);
    return;
  }
  const control::FrameHeader kick{control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::KICK),
                                  0, 0, session_id_};
  (void)!::send(socket_, &kick, sizeof kick, MSG_NOSIGNAL | MSG_DONTWAIT);
}

CUresult Session::tell_share(uint64_t address, uint64_t bytes, uint64_t on) {
  if (!is_byte_stream_) return CUDA_SUCCESS;
  wire::Header header{};
  header.opcode = static_cast<uint16_t>(wire::Op::SHARE);
  header.flags = wire::NOREPLY;
  return submit(&header, 0, Carries::NO_WORK,
                part(wire::Share{address - reserve_address_space(), bytes, on}));
}

// ---- replies and events

uint64_t Session::expect(Pending* pending) {
  const std::lock_guard lock(pending_mutex_);
  const uint64_t call_id = next_call_id_++;
  pending_.emplace_back(call_id, pending);
  return call_id;
}

// Under pending_mutex_. Null: its caller has given up.
Session::Pending* Session::take_pending(uint64_t call_id) {
  const auto found = std::ranges::find(pending_, call_id, &Expected::call_id);
  if (found == pending_.end()) return nullptr;
  Pending* const pending = found->pending;
  *found = pending_.back();
  pending_.pop_back();
  return pending;
}

CUresult Session::abandon(uint64_t call_id, CUresult result) {
  const std::lock_guard lock(pending_mutex_);
  (void)take_pending(call_id);
  return result;
}

CUresult Session::wait_reply(uint64_t call_id, Pending* pending) {
  SpinThenSleep wait;
  for (;;) {
    pump(pending);
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

CUresult Session::reply_result(const Pending& pending) {
  if (Trace::is_on()) [[unlikely]]
    Trace::answered(pending.len_bytes, pending.time);
  if (pending.is_deferred && is_open()) (void)take_error();  // the program is told by this reply
  return pending.result;
}

void Session::pump(const Pending* wanted) {
  const std::unique_lock lock(event_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  wire::Header header;
  alignas(8) std::byte record[wire::MAX_RECORD_BYTES];
  while (events_.peek(&header)) {
    events_.take(header, record);
    dispatch(header, record + sizeof header, header.len_bytes - sizeof header);
    // Whether there is more is in a line that the worker has: who has what it wants does not look.
    if (wanted != nullptr && wanted->done.load(std::memory_order_relaxed)) break;
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
      Pending* const pending = take_pending(header.call_id);
      if (pending == nullptr) return;
      if (pending->out != nullptr) {
        const uint32_t n = len_bytes - static_cast<uint32_t>(sizeof reply);
        pending->out->len_bytes = std::min(n, pending->out->capacity_bytes);
        std::memcpy(pending->out->data, body + sizeof reply, pending->out->len_bytes);
      }
      pending->result = static_cast<CUresult>(reply.result);
      pending->is_deferred = (reply.flags & wire::REPLY_DEFERRED) != 0;
      pending->time = reply.flags >> wire::REPLY_TIME_SHIFT;
      pending->len_bytes = len_bytes;
      pending->done.store(true, std::memory_order_release);
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
      std::FILE* const file = output.is_error != 0 ? stderr : stdout;
      std::fwrite(body + sizeof output, 1,
                  std::min<size_t>(output.len_bytes, len_bytes - sizeof output), file);
      std::fflush(file);
      return;
    }
    default:
      log(Level::DEBUG, "event %u ignored", header.opcode);
  }
}

// ---- the end

void Session::check_connection() {
  if (detached_.load(std::memory_order_relaxed)) return check_worker();
  char buffer[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): it does not block
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
  } else if (n <= 0 && worker_fd_ < 0) {
    end(CUDA_ERROR_UNKNOWN, "the connection to the host is gone");
  } else if (n <= 0) {
    if (!detached_.exchange(true)) log(Level::DEBUG, "kvgpud is gone; the session goes on");
    check_worker();
  }
}

// The session is the worker: a program of the host sees it itself.
void Session::check_worker() {
  pollfd ended{worker_fd_, POLLIN, 0};
  if (poll(&ended, 1, 0) > 0) end(CUDA_ERROR_UNKNOWN, "its worker has ended");
}

void Session::end(CUresult error, const char* reason) {
  CUresult none = CUDA_SUCCESS;
  if (ended_.compare_exchange_strong(none, error)) {
    log(Level::WARNING, "the session has ended: %s", reason);
    const std::lock_guard lock(callback_mutex_);
    callback_wanted_.notify_all();
  }
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

void Session::settle_word(uint32_t word, uint64_t last_number) {
  // release: pairs with the acquire in reached()
  store_release(progress_[word], last_number);
}

CUresult Session::query(uint32_t word, uint64_t number) {
  if (const CUresult lost = lost_error(word, number)) return lost;
  if (reached(word, number)) return finished();
  if (progress_by_records_) pump();
  if (const CUresult pending = pending_error()) return pending;
  // A program may poll for ever: now and then look whether anybody is there.
  thread_local unsigned n_queries = 0;
  if (++n_queries % 1024 == 0) look_around();
  return CUDA_ERROR_NOT_READY;
}

CUresult Session::wait(uint32_t word, uint64_t number) {
  CUresult result = query(word, number);
  if (result != CUDA_ERROR_NOT_READY) return result;
  SpinThenSleep wait;
  for (; result == CUDA_ERROR_NOT_READY; result = query(word, number)) {
    if (!wait.step()) continue;
    pump();
    check_connection();
  }
  // The worker may sleep by now: it wakes while the program goes on.
  if (wait.was_long()) kick_if_asleep();
  return result;
}

void Session::report_refused(const char* entry_point) {
  if (!is_open() || (features_ & control::FEATURE_REFUSED_CALLS) == 0) return;
  wire::RefusedCall body{};
  std::strncpy(body.name, entry_point, sizeof body.name - 1);
  (void)send(wire::Op::REFUSED_CALL, 0, part(body));
}

CUresult Session::too_new(wire::Op op) {
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    log(Level::WARNING,
        "record %u needs protocol 0.%u, which host or guest does not have: upgrade kvgpu on both",
        static_cast<unsigned>(op), wire::minor_of(op));
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace kvgpu::guest
