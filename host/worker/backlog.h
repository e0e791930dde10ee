// SPDX-License-Identifier: Apache-2.0
// Records whose time has not come: their stream is full (stream_window.h), or they come after one
// that is held, by CUDA's own order:
//   - records of one stream keep their order;
//   - records that name the same event or graph exec keep theirs (a wait comes after the record
//     that it waits for, and before the next one);
//   - the legacy stream and the blocking streams of a context wait for each other;
//   - frees, unloads, resets and synchronisations wait for what they would wait for natively;
//   - a kernel's attributes change after the launches that were made before, and before what names
//     the kernel after that; the textures and surfaces that modules name change likewise.
// All else overtakes. Handles are found in a record by their tag (PROTOCOL.md §3.2), not by its
// layout: a number that only looks like one makes a record wait that need not.
//
// Locks: Dependencies::mutex_, taken last, and never held during a driver call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "handles.h"
#include "kvgpu/records.h"
#include "task.h"

namespace kvgpu::worker {

class Session;

// What a record touches, as far as order goes.
struct Uses {
  std::vector<wire::Handle>
      holds;  // once it is held, later records that look for one of these wait
  std::vector<wire::Handle> after;  // it comes after the held records that hold one of these
  bool after_all = false;           // it comes after all held records
};
Uses uses_of(const Session& session, const Task& task);

// Who waits for whom, for all devices of the session.
class Dependencies {
 public:
  bool any() const { return n_held_.load(std::memory_order_acquire) != 0; }
  void add(uint64_t seq, const Uses& uses);
  void remove(uint64_t seq, const Uses& uses);
  // Is a record before `seq` held that this one comes after?
  [[nodiscard]] bool is_behind(uint64_t seq, const Uses& uses) const;
  void wait(uint64_t seq, const Uses& uses) const;

 private:
  bool is_behind_locked(uint64_t seq, const Uses& uses) const;

  std::atomic<size_t> n_held_{0};  // release by add() and remove(), acquire by any()
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // Sorted; records come almost in order and go almost first in, first out.
  std::deque<uint64_t> held_;
  std::unordered_map<wire::Handle, std::deque<uint64_t>> holders_;
};

// Of one executor, and touched by its thread only.
class Backlog {
 public:
  static constexpr size_t MAX_RECORDS = 32 * 1024;
  static constexpr size_t MAX_BYTES = 32u << 20;

  struct Held {
    Task task;
    std::vector<std::byte> body;  // what task.body points to
    Uses uses;
    std::shared_ptr<Stream> stream;  // what task.stream points to
  };

  explicit Backlog(Session* session) : session_(session) {}

  bool empty() const { return n_records_ == 0; }
  bool has_room() const { return n_records_ < MAX_RECORDS && n_bytes_ < MAX_BYTES; }
  void hold(const Task& task, Uses uses);
  // Gives what may go now to `run`, at most `limit` records; returns how many went.
  template <typename Run>
  int release(int limit, Run run);

 private:
  using Lane = std::deque<std::unique_ptr<Held>>;  // in order: one stream, or one other object
  bool may_go(const Held& held) const;
  void remove(const Held& held);

  Session* const session_;
  size_t n_records_ = 0, n_bytes_ = 0;
  std::unordered_map<wire::Handle, Lane> lanes_;
};

// The stream's window says that the driver would block.
[[nodiscard]] bool is_full_by_driver(Session& session, const Task& task);
[[nodiscard]] inline bool is_full(Session& session, const Task& task) {
  return task.stream != nullptr && task.stream->window.may_be_full() &&
         is_full_by_driver(session, task);
}

template <typename Run>
int Backlog::release(int limit, Run run) {
  int n = 0;
  for (auto lane = lanes_.begin(); lane != lanes_.end() && n < limit;) {
    while (n < limit && !lane->second.empty() && may_go(*lane->second.front())) {
      const Held& held = *lane->second.front();
      run(held.task);
      remove(held);
      lane->second.pop_front();
      ++n;
    }
    lane = lane->second.empty() ? lanes_.erase(lane) : std::next(lane);
  }
  return n;
}

}  // namespace kvgpu::worker
