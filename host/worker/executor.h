// SPDX-License-Identifier: Apache-2.0
// One per device: takes records in ring order and makes the driver calls. Work that blocks is
// started here and finished by the pool, and work of a stream that is full waits in the backlog, so
// that nothing that waits in the driver stops other threads or other devices
// (docs/architecture.md).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "backlog.h"
#include "handle_cache.h"
#include "kvgpu/ring.h"
#include "pool.h"
#include "spin.h"
#include "task.h"

namespace kvgpu::worker {

class Session;

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

class Executor {
 public:
  Executor(Session* session, int device, Pool* pool);

  void start();
  // Runs the next record, or what is held and may go; false: there is none.
  bool step();

  // The same for who reads and executes in one thread (Session::read_commands()): this record,
  // whose body lasts as long as the call; some of what is held.
  void take(Task& task);
  bool release_some() { return release_held(RELEASE_EVERY) > 0; }
  bool holds_any() const { return !backlog_.empty(); }

  TaskQueue& queue() { return queue_; }
  int device() const { return device_; }
  uint64_t done_seq() const { return done_seq_.load(std::memory_order_acquire); }

 private:
  static constexpr int RELEASE_EVERY = 32;  // records, between looks at what is held

  void run();
  void execute(Task& task);
  void start_blocking(Task task);
  void hold(const Task& task, Uses uses);
  int release_held(int limit);

  Session* const session_;
  const int device_;
  Pool* const pool_;
  TaskQueue queue_;
  Backlog backlog_;
  HandleCache cache_;
  int since_release_ = 0;  // records executed since the backlog was looked at
  Spin spin_;
  // Executed, held, or given to the pool. Release by step(), acquire by wait_for_others().
  std::atomic<uint64_t> done_seq_{0};
};

// Runs the handler of a task that may be run, and answers it.
void run_task(Session& session, const Task& task);

}  // namespace kvgpu::worker
