// SPDX-License-Identifier: Apache-2.0
// Records that one thread has read and another one executes. A line that both write, or that one
// writes and the other looks at each time, costs both 0.3 µs a record: so each side keeps what it
// has seen of the other's position, and looks again only when that is used up.
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
  enum class Waits { FOR_DEVICES, NEVER };  // do records have a `wait_for`?
  explicit TaskQueue(Waits waits);

  // Producer. Room for a record of this size, contiguous; naps while the queue is full, which
  // makes the ring fill and the guest wait, as it would natively. The consumer has been told of
  // what is there.
  std::byte* reserve(uint32_t padded_bytes);
  // The consumer finds it, unless it sleeps.
  void publish(const Task& task);
  // After a full fence behind publish().
  void wake_if_asleep();
  void commit(const Task& task);  // all of that
  // Would reserve() return at once?
  bool has_room(uint32_t padded_bytes);
  // One step of the wait for room. The consumer has records for longer, and needs what a thread
  // that spins takes from it: the other half of its processor, and a line for each look.
  static void nap();

  // Consumer. The next record; false: none yet.
  bool peek(Task* task);
  // The one behind that which was looked at last; false: none yet, or none right behind it.
  bool peek_on(Task* task);
  // Before those that were looked at, `n` records, are executed: as many more come meanwhile.
  void prefetch(size_t n) const;
  void wait();         // until there is a record
  void pop(size_t n);  // of those that were looked at, the first ones

 private:
  struct Slot {  // precedes each record
    uint64_t seq;
    uint64_t position;
    const OpInfo* op;  // null: the rest of the buffer is unused
    uint64_t bytes;    // of all that belongs to the record
  };
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static constexpr uint64_t QUEUE_BYTES = 1 << 20;

  Slot* slot_at(uint64_t position) const {
    return reinterpret_cast<Slot*>(buffer_.get() + (position & (QUEUE_BYTES - 1)) / sizeof(Line));
  }
  DeviceSeqs* waits_of(Slot* slot) { return reinterpret_cast<DeviceSeqs*>(slot + 1); }
  std::byte* record_of(Slot* slot) { return reinterpret_cast<std::byte*>(slot) + head_bytes_; }
  uint64_t bytes_for(uint32_t padded_bytes) const;
  bool fits(uint64_t total, uint64_t tail);
  bool has(uint64_t position);  // a record, or what is unused
  void read(uint64_t position, Task* task);

  const bool keeps_waits_;
  const uint64_t head_bytes_;  // before the record
  const std::unique_ptr<Line[]> buffer_;
  // The producer's.
  alignas(64) std::atomic<uint64_t> tail_{0};  // release by publish, acquire by peek
  alignas(64) uint64_t reserved_bytes_ = 0;
  uint64_t seen_head_ = 0;
  // The consumer's.
  alignas(64) std::atomic<uint64_t> head_{0};  // release by pop, acquire by reserve
  alignas(64) uint64_t seen_tail_ = 0;
  uint64_t next_ = 0;  // behind the record that was looked at last
  Patience patience_;
  alignas(64) std::atomic<uint32_t> sleeping_{0};  // pairs with tail_: see wake_if_asleep()
};

}  // namespace kvgpu::worker
