// SPDX-License-Identifier: Apache-2.0
// One per device: takes records in ring order and makes the driver calls. Work that blocks is
// started here and finished by the pool, and work of a stream that is full waits in the backlog, so
// that nothing that waits in the driver stops other threads or other devices
// (docs/architecture.md).
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "backlog.h"
#include "handle_cache.h"
#include "kvgpu/ring.h"
#include "launch_run.h"
#include "pool.h"
#include "spin.h"
#include "task_queue.h"

namespace kvgpu::worker {

class Session;

class Executor {
 public:
  Executor(Session* session, int device, Pool* pool);

  void start();
  // Runs the next record, or what is held and may go; false: there is none.
  bool step();

  // The same for who reads and executes in one thread (Session::read_commands()): this record,
  // whose body lasts as long as the call; some of what is held.
  void take(Task& task);
  // Launches that follow one another: whoever has filled it calls give_launches().
  LaunchRun& launches() { return launches_; }
  void give_launches();
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
  LaunchRun launches_;
  int since_release_ = 0;  // records executed since the backlog was looked at
  Spin spin_;
  // Executed, held, or given to the pool. Release by step(), acquire by wait_for_others().
  std::atomic<uint64_t> done_seq_{0};
};

// Runs the handler of a task that may be run, and answers it.
void run_task(Session& session, const Task& task);
// The driver has refused what a task wanted.
void note_failure(Session& session, const Task& task, CUresult result);

}  // namespace kvgpu::worker
