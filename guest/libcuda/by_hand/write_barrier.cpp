// SPDX-License-Identifier: Apache-2.0
#include "write_barrier.h"

#include <atomic>
#include <ctime>

#include "fault_handlers.h"

namespace kvgpu::guest {

namespace {

std::atomic<bool> is_closed{false};  // release by the barrier, acquire by the handler
// Valid from the time of closing: published by is_closed, or by the fault that follows it.
std::atomic<uint64_t> range_begin{0}, range_end{0};
std::atomic<int64_t> opened_ms{0};

// How late a thread may be scheduled after its fault.
constexpr int64_t LATE_MS = 200;

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// True: the instruction may be tried again.
bool is_ours(uint64_t address) {
  constexpr timespec PAUSE{0, 100'000};
  if (address < range_begin || address >= range_end) return false;
  while (is_closed.load(std::memory_order_acquire)) (void)nanosleep(&PAUSE, nullptr);
  return now_ms() - opened_ms.load(std::memory_order_relaxed) < LATE_MS;
}

}  // namespace

WriteBarrier::WriteBarrier(uint64_t begin, uint64_t bytes) {
  range_begin = begin;
  range_end = begin + bytes;
  is_closed.store(true, std::memory_order_release);
  watch_faults(&is_ours);
}

WriteBarrier::~WriteBarrier() {
  opened_ms.store(now_ms(), std::memory_order_relaxed);
  is_closed.store(false, std::memory_order_release);
}

}  // namespace kvgpu::guest
