// SPDX-License-Identifier: Apache-2.0
#include "parallel_copy.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "kvgpu/barrier.h"

namespace kvgpu::memory {

namespace {

constexpr int SPINS = 2'000;  // about 50 µs: the next piece of a large copy comes sooner

unsigned n_usable_processors() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return 1;
  return static_cast<unsigned>(CPU_COUNT(&usable));
}

}  // namespace

CopyCrew& CopyCrew::get() {
  static auto& crew = *new CopyCrew(std::min(n_usable_processors() / 2, MAX_HELPERS));
  return crew;
}

// Holding mutex_.
void CopyCrew::start() {
  is_started_ = true;
  // The program's signals are for its own threads, but those that a copy may cause.
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int signal : {SIGSEGV, SIGBUS}) sigdelset(&blocked, signal);
  (void)pthread_sigmask(SIG_SETMASK, &blocked, &before);
  for (unsigned i = 0; i < n_helpers_; ++i) std::thread(&CopyCrew::help, this).detach();
  (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool CopyCrew::copy_one() {
  uint64_t left = n_left_.load(std::memory_order_relaxed);
  do {
    if (left == 0) return false;
  } while (!n_left_.compare_exchange_weak(left, left - 1, std::memory_order_acquire,
                                          std::memory_order_relaxed));
  const size_t begin = (left - 1) * PART_BYTES;
  job_.copy(job_.to + begin, job_.from + begin, std::min(PART_BYTES, job_.bytes - begin));
  n_copied_.fetch_add(1, std::memory_order_release);
  return true;
}

void CopyCrew::help() {
  for (;;) {
    const uint32_t call = call_.load(std::memory_order_acquire);
    for (int i = 0; i < SPINS; ++i) {
      if (copy_one()) i = 0;
      cpu_relax();
    }
    // seq_cst on both sides: either run() sees who sleeps, or this sees its call
    n_asleep_.fetch_add(1, std::memory_order_seq_cst);
    if (n_left_.load(std::memory_order_seq_cst) == 0) call_.wait(call);
    n_asleep_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void CopyCrew::run(Copy copy, void* to, const void* from, size_t bytes) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (n_helpers_ == 0 || bytes < 2 * PART_BYTES || !lock.try_lock()) return copy(to, from, bytes);
  if (!is_started_) start();
  job_ = {copy, static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes};
  const uint64_t n_parts = (bytes + PART_BYTES - 1) / PART_BYTES;
  n_copied_.store(0, std::memory_order_relaxed);
  n_left_.store(n_parts, std::memory_order_seq_cst);
  if (n_asleep_.load(std::memory_order_seq_cst) != 0) {
    call_.fetch_add(1, std::memory_order_release);
    call_.notify_all();
  }
  while (copy_one()) continue;
  while (n_copied_.load(std::memory_order_acquire) != n_parts) cpu_relax();
}

}  // namespace kvgpu::memory
