// SPDX-License-Identifier: Apache-2.0
#include "progress_watch.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "event_ring.h"
#include "kvgpu/barrier.h"

namespace kvgpu::worker {

namespace {

using std::chrono::microseconds;

// Between looks: an eighth of what has passed, so that short work's end is seen soon.
constexpr microseconds FIRST_PAUSE{10}, LAST_PAUSE{50'000};
// New work does not wait for the end of a longer one.
constexpr microseconds LONG_PAUSE{500};

}  // namespace

void ProgressWatch::expect(uint32_t word, uint64_t number) {
  const std::lock_guard lock(mutex_);
  outstanding_[word].expected = number;
  is_new_ = true;
  wanted_.notify_one();
}

void ProgressWatch::forget(uint32_t word) {
  const std::lock_guard lock(mutex_);
  outstanding_.erase(word);
}

void ProgressWatch::run() {
  std::unique_lock lock(mutex_);
  microseconds pause = FIRST_PAUSE;
  for (;;) {
    wanted_.wait(lock, [this] { return !outstanding_.empty(); });
    const bool is_new = std::exchange(is_new_, false);
    const bool any = send_reached(&lock);
    pause = any || is_new ? FIRST_PAUSE : std::min(pause + pause / 8, LAST_PAUSE);
    if (pause > LONG_PAUSE) {
      wanted_.wait_for(lock, pause, [this] { return is_new_; });
    } else {
      lock.unlock();
      std::this_thread::sleep_for(pause);
      lock.lock();
    }
  }
}

// Sends without the lock: the ring may be full for long, and executors want the lock.
bool ProgressWatch::send_reached(std::unique_lock<std::mutex>* lock) {
  std::vector<wire::Progress> reached;
  for (auto at = outstanding_.begin(); at != outstanding_.end();) {
    auto& [word, state] = *at;
    // acquire: pairs with the GPU's write; what it wrote before is there
    const uint64_t number = std::min(load_acquire(words_[word]), state.expected);
    if (number > state.sent) {
      reached.push_back({word, number});
      state.sent = number;
    }
    at = number == state.expected ? outstanding_.erase(at) : std::next(at);
  }
  lock->unlock();
  for (const wire::Progress& progress : reached) events_->send(wire::Op::PROGRESS, progress);
  lock->lock();
  return !reached.empty();
}

}  // namespace kvgpu::worker
