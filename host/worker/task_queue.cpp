// SPDX-License-Identifier: Apache-2.0
#include "task_queue.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "kvgpu/barrier.h"

namespace kvgpu::worker {

TaskQueue::TaskQueue(Waits waits)
    : keeps_waits_(waits == Waits::FOR_DEVICES),
      head_bytes_(sizeof(Slot) + (keeps_waits_ ? sizeof(DeviceSeqs) : 0)),
      buffer_(new Line[QUEUE_BYTES / sizeof(Line)]) {}

// Whole lines: no record shares one with the next.
uint64_t TaskQueue::bytes_for(uint32_t padded_bytes) const {
  return (head_bytes_ + padded_bytes + sizeof(Line) - 1) & ~(sizeof(Line) - 1);
}

// acquire: pairs with the release in pop(); what was there is done with
bool TaskQueue::fits(uint64_t total, uint64_t tail) {
  if (tail + total - seen_head_ <= QUEUE_BYTES) return true;
  seen_head_ = head_.load(std::memory_order_acquire);
  return tail + total - seen_head_ <= QUEUE_BYTES;
}

std::byte* TaskQueue::reserve(uint32_t padded_bytes) {
  const uint64_t bytes = bytes_for(padded_bytes);
  uint64_t tail = tail_.load(std::memory_order_relaxed);
  const uint64_t to_end = QUEUE_BYTES - (tail & (QUEUE_BYTES - 1));
  const uint64_t total = bytes > to_end ? to_end + bytes : bytes;
  while (!fits(total, tail)) nap();
  if (bytes > to_end) {
    Slot& unused = *slot_at(tail);
    unused.op = nullptr;
    unused.bytes = to_end;
    tail += to_end;
    tail_.store(tail, std::memory_order_release);
  }
  reserved_bytes_ = bytes;
  return record_of(slot_at(tail));
}

void TaskQueue::nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

// What reserve() leaves unused at the buffer's end is less than the record itself takes.
bool TaskQueue::has_room(uint32_t padded_bytes) {
  return fits(2 * bytes_for(padded_bytes), tail_.load(std::memory_order_relaxed));
}

void TaskQueue::publish(const Task& task) {
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  Slot* const slot = slot_at(tail);
  *slot = {task.seq, task.position, task.op, reserved_bytes_};
  if (keeps_waits_) *waits_of(slot) = *task.wait_for;
  tail_.store(tail + reserved_bytes_, std::memory_order_release);
}

// Either the consumer sees the record, or we see that it sleeps.
void TaskQueue::wake_if_asleep() {
  if (sleeping_.load(std::memory_order_acquire) == 0) return;
  sleeping_.store(0, std::memory_order_release);
  sleeping_.notify_one();
}

void TaskQueue::commit(const Task& task) {
  publish(task);
  fence_full();  // pairs with the seq_cst store and load in wait()
  wake_if_asleep();
}

void TaskQueue::prefetch(size_t n) const {
  constexpr size_t LINES = 3;  // of a launch
  const uint64_t end = std::min(seen_tail_, next_ + n * LINES * sizeof(Line));
  for (uint64_t at = next_; at < end; at += sizeof(Line)) {
    prefetch_to_read(&buffer_[(at & (QUEUE_BYTES - 1)) / sizeof(Line)]);
  }
}

void TaskQueue::read(uint64_t position, Task* task) {
  Slot* const slot = slot_at(position);
  next_ = position + slot->bytes;
  const std::byte* const record = record_of(slot);
  std::memcpy(&task->header, record, sizeof task->header);
  task->body = {record + sizeof task->header, task->header.len_bytes - sizeof task->header};
  task->seq = slot->seq;
  task->position = slot->position;
  task->op = slot->op;
  task->wait_for = keeps_waits_ ? waits_of(slot) : nullptr;
}

bool TaskQueue::has(uint64_t position) {
  if (position != seen_tail_) return true;
  // acquire: pairs with the release in publish()
  seen_tail_ = tail_.load(std::memory_order_acquire);
  return position != seen_tail_;
}

bool TaskQueue::peek(Task* task) {
  for (;;) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (!has(head)) return false;
    const Slot& slot = *slot_at(head);
    if (slot.op != nullptr) {
      read(head, task);
      prefetch(1);
      return true;
    }
    head_.store(head + slot.bytes, std::memory_order_release);
  }
}

bool TaskQueue::peek_on(Task* task) {
  if (!has(next_) || slot_at(next_)->op == nullptr) return false;
  read(next_, task);
  return true;
}

void TaskQueue::wait() {
  const uint64_t head = head_.load(std::memory_order_relaxed);
  Spin spin(patience_.limit());
  while (tail_.load(std::memory_order_acquire) == head) {
    if (spin.once()) continue;
    const Spin::Clock::time_point begun = Spin::Clock::now();
    sleeping_.store(1, std::memory_order_seq_cst);
    if (tail_.load(std::memory_order_seq_cst) == head) sleeping_.wait(1);
    sleeping_.store(0, std::memory_order_relaxed);
    patience_.slept(Spin::Clock::now() - begun);
    spin.reset(patience_.limit());
  }
}

void TaskQueue::pop(size_t n) {
  uint64_t head = head_.load(std::memory_order_relaxed);
  for (; n > 0; --n) head += slot_at(head)->bytes;
  head_.store(head, std::memory_order_release);
}

}  // namespace kvgpu::worker
