// SPDX-License-Identifier: Apache-2.0
// The lock of the command ring: one at a time, nobody sleeps for ever.
#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "short_lock.h"

using kvgpu::guest::ShortLock;

TEST_CASE("one thread at a time, and all have their turn") {
  constexpr int THREADS = 6, TIMES = 20'000;
  ShortLock lock;
  int n = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < THREADS; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < TIMES; ++k) {
        const std::lock_guard held(lock);
        ++n;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(n == THREADS * TIMES);
}

TEST_CASE("who sleeps for it is woken") {
  ShortLock lock;
  for (int round = 0; round < 20; ++round) {
    lock.lock();
    std::atomic<int> n_through{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        const std::lock_guard held(lock);
        ++n_through;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // they have ended their spinning
    CHECK(n_through == 0);
    CHECK_FALSE(lock.try_lock());
    lock.unlock();
    for (std::thread& thread : threads) thread.join();
    CHECK(n_through == 3);
  }
  CHECK(lock.try_lock());
  lock.unlock();
}
