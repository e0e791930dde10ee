// SPDX-License-Identifier: Apache-2.0
// Records that one thread has read and another one executes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "spin.h"
#include "task.h"

namespace kvgpu::worker {

// Single producer (the reader), one consumer at a time (the executor; a lane, or the reader where
// that has given up), private memory. Keeps records in place until they are done.
class TaskQueue {
 public:
  TaskQueue();

  // Producer. Room for a record of this size, contiguous; waits while the queue is full, which
  // makes the ring fill and the guest wait, as it would natively.
  std::byte* reserve(uint32_t padded_bytes);
  void commit(const Task& task);
  // Would reserve() return at once?
  bool has_room(uint32_t padded_bytes) const;

  // Consumer. The next record; false: none yet.
  bool peek(Task* task);
  void wait();  // until there is a record
  void pop(const Task& task);

 private:
  struct Slot {  // precedes each record
    uint64_t seq;
    uint64_t position;
    const OpInfo* op;  // null: the rest of the buffer is unused
    uint64_t bytes;    // of slot and record
    DeviceSeqs wait_for;
  };
  static constexpr uint64_t QUEUE_BYTES = 1 << 20;

  Slot* slot_at(uint64_t position) {
    return reinterpret_cast<Slot*>(buffer_.get() + (position & (QUEUE_BYTES - 1)));
  }

  std::unique_ptr<std::byte[]> buffer_;
  uint64_t reserved_bytes_ = 0;
  alignas(64) std::atomic<uint64_t> tail_{0};  // release by commit, acquire by peek
  alignas(64) std::atomic<uint64_t> head_{0};  // release by pop, acquire by reserve
  std::atomic<uint32_t> sleeping_{0};          // pairs with tail_: see commit()
  Patience patience_;                          // the consumer's
};

}  // namespace kvgpu::worker
