// SPDX-License-Identifier: Apache-2.0
#include "task_queue.h"

namespace kvgpu::worker {

TaskQueue::TaskQueue() : buffer_(new std::byte[QUEUE_BYTES]) {}

std::byte* TaskQueue::reserve(uint32_t padded_bytes) {
  const uint64_t bytes = sizeof(Slot) + padded_bytes;
  uint64_t tail = tail_.load(std::memory_order_relaxed);
  const uint64_t to_end = QUEUE_BYTES - (tail & (QUEUE_BYTES - 1));
  const uint64_t total = bytes > to_end ? to_end + bytes : bytes;
  Spin spin;
  // acquire: pairs with the release in pop(); what was there is done with
  while (tail + total - head_.load(std::memory_order_acquire) > QUEUE_BYTES) spin.wait();
  if (bytes > to_end) {
    Slot& unused = *slot_at(tail);
    unused.op = nullptr;
    unused.bytes = to_end;
    tail += to_end;
    tail_.store(tail, std::memory_order_release);
  }
  reserved_bytes_ = bytes;
  return reinterpret_cast<std::byte*>(slot_at(tail) + 1);
}

bool TaskQueue::has_room(uint32_t padded_bytes) const {
  const uint64_t used =
      tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_acquire);
  // What reserve() leaves unused at the buffer's end is less than the record itself takes.
  return QUEUE_BYTES - used >= 2 * (sizeof(Slot) + padded_bytes);
}

void TaskQueue::commit(const Task& task) {
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  *slot_at(tail) = {task.seq, task.position, task.op, reserved_bytes_, *task.wait_for};
  // seq_cst with the sleeper's flag: either it sees the record, or we see that it sleeps
  tail_.store(tail + reserved_bytes_, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) != 0) {
    sleeping_.store(0, std::memory_order_release);
    sleeping_.notify_one();
  }
}

bool TaskQueue::peek(Task* task) {
  for (;;) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    // acquire: pairs with the release in commit()
    if (tail_.load(std::memory_order_acquire) == head) return false;
    const Slot* slot = slot_at(head);
    if (slot->op == nullptr) {
      head_.store(head + slot->bytes, std::memory_order_release);
      continue;
    }
    const auto* record = reinterpret_cast<const std::byte*>(slot + 1);
    std::memcpy(&task->header, record, sizeof task->header);
    task->body = {record + sizeof task->header, task->header.len_bytes - sizeof task->header};
    task->seq = slot->seq;
    task->position = slot->position;
    task->op = slot->op;
    task->wait_for = &slot->wait_for;
    return true;
  }
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

void TaskQueue::pop(const Task&) {
  const uint64_t head = head_.load(std::memory_order_relaxed);
  head_.store(head + slot_at(head)->bytes, std::memory_order_release);
}

}  // namespace kvgpu::worker
