// SPDX-License-Identifier: Apache-2.0
// Threads for driver calls that block. Each task's caller waits in the guest for the reply, so
// there are never more tasks than guest threads.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvgpu::worker {

class Pool {
 public:
  static constexpr int MAX_TASKS = 1024;

  explicit Pool(std::function<void()> on_thread_start, int max_threads = MAX_TASKS)
      : on_thread_start_(std::move(on_thread_start)), max_threads_(max_threads) {}

  // False: more tasks than any program has threads.
  [[nodiscard]] bool submit(std::function<void()> work);

 private:
  void run();

  const std::function<void()> on_thread_start_;
  const int max_threads_;
  std::mutex mutex_;
  std::condition_variable available_;
  std::deque<std::function<void()>> work_;
  int n_threads_ = 0;
  int n_idle_ = 0;
  int n_unfinished_ = 0;
};

}  // namespace kvgpu::worker
