// SPDX-License-Identifier: Apache-2.0
#include "backlog.h"

#include <algorithm>

#include "ops.h"
#include "session.h"

namespace kvgpu::worker {

namespace {

// What was set on a kernel, in Uses: no handle is like it.
wire::Handle settings_of(wire::Handle function) { return ~function; }

bool changes_kernel(const Task& task) {
  switch (static_cast<wire::Op>(task.header.opcode)) {
    case wire::Op::ATTRIBUTE_AGAIN:
    case wire::Op::cuFuncSetAttribute:
    case wire::Op::cuKernelSetAttribute:
    case wire::Op::cuFuncSetCacheConfig:
    case wire::Op::cuFuncSetSharedMemConfig:
    case wire::Op::cuKernelSetCacheConfig:
      return true;
    default:
      return false;
  }
}

// What a record of a stream has to do with the context's legacy stream. A captured one, whose
// caller waits for the verdict, executes nothing.
void add_legacy_order(const Session& session, const Task& task, Uses* uses) {
  const Stream& stream = *task.stream;
  if (task.wants_reply() && stream.raw != nullptr) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    (void)session.driver->cuStreamIsCapturing(stream.raw, &capturing);
    if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) return;
  }
  if (stream.is_legacy()) {
    uses->after.push_back(stream.context_handle);
  } else if (stream.is_blocking) {
    uses->holds.push_back(stream.context_handle);
    uses->after.push_back(stream.context->legacy_handle);
  }
}

void add_handle(const Session& session, const Task& task, wire::Handle handle, Uses* uses) {
  switch (wire::handle_kind(handle)) {
    case wire::Kind::STREAM:
    case wire::Kind::EVENT:
    case wire::Kind::GRAPH_EXEC:
      uses->holds.push_back(handle);
      uses->after.push_back(handle);
      break;
    case wire::Kind::FUNCTION:
      // Launches of one kernel do not mind each other.
      if (task.op->route == Route::ENQUEUE) uses->holds.push_back(handle);
      if (changes_kernel(task)) {
        uses->holds.push_back(settings_of(handle));
        uses->after.push_back(handle);
      }
      uses->after.push_back(settings_of(handle));
      break;
    case wire::Kind::REFERENCE:
      // Launches name none, and see what it is when they are made.
      uses->holds.push_back(handle);
      uses->after.push_back(handle);
      uses->after_all = true;
      break;
    default:
      break;
  }
  // The legacy stream's synchronisation waits for the blocking streams.
  if (task.op->route == Route::BLOCK && wire::handle_kind(handle) == wire::Kind::STREAM) {
    const auto stream = session.handles.stream(handle);
    if (stream != nullptr && stream->is_legacy()) uses->after.push_back(stream->context_handle);
  }
}

}  // namespace

namespace {

// Of what else frees or waits for the whole context.
bool leaves_work_alone(wire::Op op) {
  switch (op) {
    case wire::Op::cuGraphExecDestroy:  // no concern of others
    case wire::Op::cuMemAddressFree:
    case wire::Op::cuMemRelease:
    case wire::Op::cuMemUnmap:  // the driver does not wait for work that still uses the memory
      return true;
    default:
      return false;
  }
}

}  // namespace

Uses uses_of(const Session& session, const Task& task) {
  Uses uses;
  for (size_t at = 0; at + sizeof(wire::Handle) <= task.body.size(); at += sizeof(wire::Handle)) {
    wire::Handle handle;
    std::memcpy(&handle, task.body.data() + at, sizeof handle);
    if (wire::handle_tagged(handle)) add_handle(session, task, handle, &uses);
  }
  if (task.stream != nullptr) add_legacy_order(session, task, &uses);
  // What frees, waits for or records the whole context.
  const auto op = static_cast<wire::Op>(task.header.opcode);
  const bool ends = task.op->route == Route::BLOCK && task.op->runs_poisoned;
  uses.after_all |= op == wire::Op::cuCtxRecordEvent || (ends && !leaves_work_alone(op));
  return uses;
}

namespace {

void insert(std::deque<uint64_t>* sorted, uint64_t seq) {
  const auto at = std::ranges::lower_bound(*sorted, seq);
  if (at == sorted->end() || *at != seq) sorted->insert(at, seq);
}

void erase(std::deque<uint64_t>* sorted, uint64_t seq) {
  const auto at = std::ranges::lower_bound(*sorted, seq);
  if (at != sorted->end() && *at == seq) sorted->erase(at);
}

}  // namespace

void Dependencies::add(uint64_t seq, const Uses& uses) {
  const std::lock_guard lock(mutex_);
  insert(&held_, seq);
  for (const wire::Handle handle : uses.holds) insert(&holders_[handle], seq);
  n_held_.store(held_.size(), std::memory_order_release);
}

void Dependencies::remove(uint64_t seq, const Uses& uses) {
  {
    const std::lock_guard lock(mutex_);
    erase(&held_, seq);
    for (const wire::Handle handle : uses.holds) {
      const auto found = holders_.find(handle);
      if (found == holders_.end()) continue;  // the record named it twice
      erase(&found->second, seq);
      if (found->second.empty()) holders_.erase(found);
    }
    n_held_.store(held_.size(), std::memory_order_release);
  }
  changed_.notify_all();
}

bool Dependencies::is_behind(uint64_t seq, const Uses& uses) const {
  const std::lock_guard lock(mutex_);
  return is_behind_locked(seq, uses);
}

bool Dependencies::is_behind_locked(uint64_t seq, const Uses& uses) const {
  if (uses.after_all && !held_.empty() && held_.front() < seq) return true;
  return std::ranges::any_of(uses.after, [&](wire::Handle handle) {
    const auto found = holders_.find(handle);
    return found != holders_.end() && found->second.front() < seq;
  });
}

void Dependencies::wait(uint64_t seq, const Uses& uses) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !is_behind_locked(seq, uses); });
}

bool is_full_by_driver(Session& session, const Task& task) {
  if (session.poison.stops(task.seq)) return false;  // it will be skipped
  Stream& stream = *task.stream;
  return session.enter(*stream.context) == CUDA_SUCCESS &&
         stream.window.is_full(*session.driver, stream.raw);
}

void Backlog::hold(const Task& task, Uses uses) {
  auto held = std::make_unique<Held>(task, std::vector(task.body.begin(), task.body.end()),
                                     std::move(uses));
  held->task.body = held->body;
  if (task.stream != nullptr) held->stream = task.stream->shared_from_this();
  session_->dependencies.add(task.seq, held->uses);
  ++n_records_;
  n_bytes_ += held->body.size();
  // Whatever is held names a stream or an object that it waits for.
  lanes_[held->uses.after.front()].push_back(std::move(held));
}

bool Backlog::may_go(const Held& held) const {
  return !is_full(*session_, held.task) &&
         !session_->dependencies.is_behind(held.task.seq, held.uses);
}

void Backlog::remove(const Held& held) {
  --n_records_;
  n_bytes_ -= held.body.size();
  session_->dependencies.remove(held.task.seq, held.uses);
}

}  // namespace kvgpu::worker
