// SPDX-License-Identifier: Apache-2.0
// Launches of several guest threads side by side. One thread gives a driver about 290,000 launches
// a second, eight threads of a native process 780,000 (one H200, driver 580). So while several
// guest threads launch more than the reader can execute, it hands their launches to threads of its
// own.
//
// A lane takes what concerns one stream alone and is answered to nobody (launches, marks). Records
// of one guest thread go to one lane; a stream's next record waits until the lane of its last one
// is through; every other record, those of legacy streams among them, waits until all lanes are, or
// have given up what cannot go at once: the home executor holds that. So what CUDA orders stays
// ordered. What two threads give to two streams may reach the driver the other way round, as CUDA
// does not order it either.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "executor.h"
#include "handle_cache.h"
#include "lane_pressure.h"
#include "spin.h"

namespace kvgpu::worker {

class Lane {
 public:
  Lane(Session* session, int device);  // may throw std::system_error: there is no thread to be had

  // The reader's.
  bool has_room(uint32_t padded_bytes) { return queue_.has_room(padded_bytes); }
  void give(const Task& task);  // it may sleep on, until
  void wake_if_asleep() { queue_.wake_if_asleep(); }
  bool is_through() const { return done_seq_.load(std::memory_order_acquire) >= given_seq_; }
  bool has_done(uint64_t seq) const { return done_seq_.load(std::memory_order_acquire) >= seq; }
  // Somebody waits until it is through: it gives up what cannot go at once.
  void await(bool is_awaited) { is_awaited_.store(is_awaited, std::memory_order_relaxed); }
  // What it has not done is the reader's, from `next` to `go_on`.
  bool has_given_up() const { return has_given_up_.load(std::memory_order_acquire); }
  bool next(Task* task) { return queue_.peek(task); }
  void taken(uint64_t last_seq, size_t n = 1);
  void go_on();

 private:
  void run();
  bool execute(Task& task);
  bool execute_launches(const Task& first);  // false: it is none
  bool wait_for_stream(const Task& task);    // which is full. False: it has waited long enough

  Session* const session_;
  TaskQueue queue_;
  HandleCache cache_;
  LaunchRun launches_;
  // Each side writes its own with each record, and seldom looks at the other's.
  alignas(64) uint64_t given_seq_ = 0;
  alignas(64) std::atomic<uint64_t> done_seq_{0};  // release by who executes, acquire by the reader
  alignas(64) std::atomic<bool> is_awaited_{false};
  std::atomic<bool> has_given_up_{false};  // release by each side, acquire by the other
};

// Of the thread that reads and executes the records, for those of a device.
class Lanes {
 public:
  Lanes(Session* session, Executor* home);

  // Records with this header are none of the lanes' business, whatever else they hold.
  bool leave(const wire::Header& header, const Executor& executor) const {
    return are_of(executor) && !are_used_ && pressure_.is_none(wire::target_thread(header.target));
  }
  // True: a lane has the record. Else all that came before has been executed, or is held by the
  // home executor, and the caller gives it this one.
  bool take(const Task& task);
  // The ring is empty. True: lanes are at work, or were some µs ago, or the home executor now holds
  // what they have given up.
  bool are_busy();
  // It is, and nothing is held.
  void relieve() { pressure_.relieve(); }
  // And it has been for so long that the reader sleeps.
  void rest() { pressure_.end(); }
  bool are_of(const Executor& executor) const { return &executor == home_; }
  // Returns once all that the lanes have been given is done, or held where it has to wait.
  void settle();

 private:
  Stream* stream_alone(const Task& task);  // null: not a lane's record
  bool give(const Task& task, Stream& stream);
  void start();
  bool any_has_given_up() const;
  void tell();  // those that sleep: what they have been given is there

  Session* const session_;
  Executor* const home_;
  HandleCache cache_;
  LanePressure pressure_;
  bool are_started_ = false;                  // at their first use
  std::vector<std::unique_ptr<Lane>> lanes_;  // as many as there were threads to be had
  bool are_used_ = false;                     // since all were through
  uint32_t n_untold_ = 0;                     // records
  Spin::Clock::time_point looked_;            // whether all are through
};

}  // namespace kvgpu::worker
