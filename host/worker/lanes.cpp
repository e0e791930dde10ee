// SPDX-License-Identifier: Apache-2.0
#include "lanes.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "log.h"
#include "ops.h"
#include "session.h"

namespace kvgpu::worker {

namespace {

// More of them gain little: the driver has locks of its own.
constexpr unsigned MOST_LANES = 8;

size_t n_lanes() { return std::clamp(std::thread::hardware_concurrency() / 2, 2u, MOST_LANES); }

// A stream that is full has room soon, or waits for something that may come after it. Seen to have
// room it is only every StreamWindow::EVENT_EVERY launches: two milliseconds, of the shortest
// kernels.
constexpr std::chrono::milliseconds GIVES_UP_AFTER{5};

// Records, between looks whether a lane has given up: its other streams wait with the full one.
constexpr uint64_t LOOKS_EVERY = 32;

// Records, between looks whether a lane sleeps: each is a full fence, for which the reader waits
// until all lines that it has written are its own.
constexpr uint32_t TELLS_EVERY = 16;

bool is_of_one_stream(const Task& task) {
  switch (static_cast<wire::Op>(task.header.opcode)) {
    case wire::Op::cuLaunchKernel:
    case wire::Op::cuLaunchKernelEx:
    case wire::Op::MARK:
      return !task.wants_reply();
    default:
      return false;
  }
}

}  // namespace

// ---- one lane

Lane::Lane(Session* session, int device)
    : session_(session),
      queue_(TaskQueue::Waits::NEVER),
      cache_(&session->handles),
      launches_(session, &cache_, device) {
  std::thread(&Lane::run, this).detach();  // the process ends by _exit: never joined
}

void Lane::give(const Task& task) {
  const uint32_t len_bytes = task.header.len_bytes;
  std::byte* const record = queue_.reserve(wire::padded(len_bytes));
  std::memcpy(record, &task.header, sizeof task.header);
  std::memcpy(record + sizeof task.header, task.body.data(), task.body.size());
  queue_.publish(task);
  given_seq_ = task.seq;
}

void Lane::taken(uint64_t last_seq, size_t n) {
  done_seq_.store(last_seq, std::memory_order_release);
  queue_.pop(n);
}

void Lane::go_on() {
  has_given_up_.store(false, std::memory_order_release);
  has_given_up_.notify_one();
}

void Lane::run() {
  prepare_driver_thread(*session_->driver);
  for (;;) {
    Task task;
    if (!queue_.peek(&task)) {
      queue_.wait();
    } else if (execute_launches(task)) {
      continue;
    } else if (execute(task)) {
      taken(task.seq);
    } else {
      has_given_up_.store(true, std::memory_order_release);
      has_given_up_.wait(true);
    }
  }
}

// And those behind it.
bool Lane::execute_launches(const Task& first) {
  if (!LaunchRun::is_launch(first.header)) return false;
  launches_.next() = first;
  if (!launches_.add_next()) return false;
  while (!launches_.is_full() && queue_.peek_on(&launches_.next()) &&
         LaunchRun::is_launch(launches_.next().header) && launches_.add_next()) {
  }
  const size_t n = launches_.size();
  queue_.prefetch(n);
  taken(launches_.give(), n);
  return true;
}

bool Lane::execute(Task& task) {
  EnqueueHead head;
  if (!task.read(&head)) session_->violation(task);
  task.cache = &cache_;
  task.stream = cache_.stream(head.stream);
  if (task.stream == nullptr) session_->violation(task);
  if (is_full(*session_, task) && !wait_for_stream(task)) return false;
  run_task(*session_, task);
  return true;
}

bool Lane::wait_for_stream(const Task& task) {
  const auto begun = Spin::Clock::now();
  do {
    if (is_awaited_ || Spin::Clock::now() - begun > GIVES_UP_AFTER) return false;
    std::this_thread::sleep_for(StreamWindow::BETWEEN_LOOKS);
  } while (is_full(*session_, task));
  return true;
}

// ---- all lanes

Lanes::Lanes(Session* session, Executor* home)
    : session_(session), home_(home), cache_(&session->handles) {}

Stream* Lanes::stream_alone(const Task& task) {
  EnqueueHead head;
  if (!is_of_one_stream(task) || !task.read(&head)) return nullptr;
  Stream* const stream = cache_.stream(head.stream);
  const bool is_one =
      stream != nullptr && !stream->is_legacy() && stream->context->device == home_->device();
  return is_one ? stream : nullptr;
}

bool Lanes::take(const Task& task) {
  const uint32_t guest_thread = wire::target_thread(task.header.target);
  if (!are_used_ && pressure_.is_none(guest_thread)) [[likely]]
    return false;
  Stream* const stream = stream_alone(task);
  if (stream == nullptr) pressure_.interrupt();
  const bool pays = stream != nullptr && pressure_.add(guest_thread);
  // What is held may be what this comes after.
  if (pays && !home_->holds_any() && give(task, *stream)) return true;
  if (are_used_) settle();
  return false;
}

void Lanes::start() {
  are_started_ = true;
  const size_t n = n_lanes();
  try {
    while (lanes_.size() < n) lanes_.push_back(std::make_unique<Lane>(session_, home_->device()));
  } catch (const std::system_error& error) {
    log("%zu of %zu threads to launch side by side: %s", lanes_.size(), n, error.what());
  }
}

bool Lanes::any_has_given_up() const {
  return std::ranges::any_of(lanes_, [](const auto& lane) { return lane->has_given_up(); });
}

void Lanes::tell() {
  n_untold_ = 0;
  fence_full();  // pairs with the seq_cst store and load in TaskQueue::wait()
  for (const auto& lane : lanes_) lane->wake_if_asleep();
}

bool Lanes::give(const Task& task, Stream& stream) {
  if (!are_started_) start();
  if (lanes_.empty() || (task.seq % LOOKS_EVERY == 0 && any_has_given_up())) return false;
  const size_t number = wire::target_thread(task.header.target) % lanes_.size();
  Lane& lane = *lanes_[number];
  const auto waits_on = [&] {
    tell();
    return !any_has_given_up();
  };
  if (stream.lane != number) {
    for (Spin spin; !lanes_[stream.lane]->has_done(stream.lane_seq); spin.wait()) {
      if (!waits_on()) return false;
    }
  }
  for (; !lane.has_room(wire::padded(task.header.len_bytes)); TaskQueue::nap()) {
    if (!waits_on()) return false;
  }
  lane.give(task);
  if (++n_untold_ == TELLS_EVERY) tell();
  stream.lane = number;
  stream.lane_seq = task.seq;
  are_used_ = true;
  return true;
}

bool Lanes::are_busy() {
  if (!are_used_) return false;
  if (n_untold_ > 0) tell();
  const Spin::Clock::time_point now = Spin::Clock::now();
  if (now - looked_ < StreamWindow::BETWEEN_LOOKS) return true;
  looked_ = now;
  const bool all_through =
      std::ranges::all_of(lanes_, [](const auto& lane) { return lane->is_through(); });
  if (!all_through && !any_has_given_up()) return true;
  settle();
  return home_->holds_any();
}

void Lanes::settle() {
  tell();
  for (const auto& lane : lanes_) lane->await(true);
  for (const auto& lane : lanes_) {
    for (Spin spin; !lane->is_through() && !lane->has_given_up();) spin.wait();
  }
  // All that is left has been given up: in its order, to who can hold it.
  for (;;) {
    Lane* first = nullptr;
    Task task, earliest;
    for (const auto& lane : lanes_) {
      if (!lane->has_given_up() || !lane->next(&task)) continue;
      if (first != nullptr && task.seq > earliest.seq) continue;
      first = lane.get();
      earliest = task;
    }
    if (first == nullptr) break;
    home_->take(earliest);
    first->taken(earliest.seq);
  }
  for (const auto& lane : lanes_) {
    lane->await(false);
    if (lane->has_given_up()) lane->go_on();
  }
  are_used_ = false;
}

}  // namespace kvgpu::worker
