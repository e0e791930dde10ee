// SPDX-License-Identifier: Apache-2.0
#include "progress_watch.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <unordered_set>
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
// No number of a record that asks for progress.
constexpr uint64_t DONE = 0;

}  // namespace

void ProgressWatch::expect(uint32_t word, uint64_t number) {
  const std::lock_guard lock(mutex_);
  outstanding_.push_back({word, number});
  is_new_ = true;
  wanted_.notify_one();
}

void ProgressWatch::forget(uint32_t word) {
  const std::lock_guard lock(mutex_);
  std::erase_if(outstanding_, [word](const auto& each) { return each.word == word; });
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
  std::unordered_set<uint64_t> words;
  // Newest first: where one is there, those it came after are seen to be there, too.
  for (auto each = outstanding_.rbegin(); each != outstanding_.rend(); ++each) {
    // acquire: pairs with the GPU's write; what it wrote before is there
    if (!words.contains(each->word) && load_acquire(words_[each->word]) < each->number) continue;
    words.insert(each->word);
    reached.push_back(std::exchange(*each, {0, DONE}));
  }
  if (reached.empty()) return false;
  std::erase_if(outstanding_, [](const auto& each) { return each.number == DONE; });
  lock->unlock();
  for (auto each = reached.rbegin(); each != reached.rend(); ++each) {
    const auto next = std::next(each);
    if (next != reached.rend() && next->word == each->word) continue;  // says this one, too
    events_->send(wire::Op::PROGRESS, *each);
  }
  lock->lock();
  return true;
}

}  // namespace kvgpu::worker
