// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

namespace kvgpu::worker {

bool Pool::submit(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (n_unfinished_ >= MAX_TASKS) return false;
  ++n_unfinished_;
  work_.push_back(std::move(work));
  if (static_cast<int>(work_.size()) > n_idle_ && n_threads_ < max_threads_) {
    ++n_threads_;
    // Detached: a session ends by _exit(), never by joining threads that may hang in the driver.
    std::thread(&Pool::run, this).detach();
  } else {
    available_.notify_one();
  }
  return true;
}

void Pool::run() {
  on_thread_start_();
  std::unique_lock lock(mutex_);
  for (;;) {
    ++n_idle_;
    available_.wait(lock, [this] { return !work_.empty(); });
    --n_idle_;
    const auto work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    --n_unfinished_;
  }
}

}  // namespace kvgpu::worker
