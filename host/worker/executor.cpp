// SPDX-License-Identifier: Apache-2.0
#include "executor.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "log.h"
#include "ops.h"
#include "progress_watch.h"
#include "quiet.h"
#include "session.h"

namespace kvgpu::worker {

namespace {

CUresult write_number(Session& session, Stream& stream, uint64_t number) {
  const auto address = reinterpret_cast<CUdeviceptr>(stream.progress);
  return session.driver->cuStreamWriteValue64_v2(stream.raw, address, number, 0);
}

CUresult add_mark(Session& session, const Task& task) {
  EnqueueHead head;
  if (!task.read(&head) || head.mark == 0) return CUDA_SUCCESS;
  Stream& stream = *task.stream;
  stream.freed.record(*session.driver, stream.raw);
  if (const CUresult bad = write_number(session, stream, head.mark)) return bad;
  stream.marked.store(head.mark, std::memory_order_release);
  session.last_mark.note(stream.progress, head.mark);
  session.watcher.wake();
  stream.window.count(*session.driver, stream.raw);
  if (session.progress != nullptr) {
    const auto word = stream.progress - session.progress_word(0);
    session.progress->expect(static_cast<uint32_t>(word), head.mark);
  }
  return CUDA_SUCCESS;
}

CUresult call_handler(Session& session, const Task& task, ReplyWriter& reply) {
  if (task.stream == nullptr) return task.op->handler(session, task, reply);
  if (const CUresult bad = session.enter(*task.stream)) return bad;
  // What waits for an event goes on when that is recorded: the guest must know the number by then.
  const bool is_mark_first = static_cast<wire::Op>(task.header.opcode) == wire::Op::cuEventRecord;
  if (is_mark_first) {
    if (const CUresult bad = add_mark(session, task)) return bad;
  }
  const CUresult result = task.op->handler(session, task, reply);
  if (result != CUDA_SUCCESS) return result;
  task.stream->window.count(*session.driver, task.stream->raw);
  return is_mark_first ? CUDA_SUCCESS : add_mark(session, task);
}

// The guest counts on its host functions. Those that the driver was never given are not run, but
// told of.
void tell_of_functions(Session& session, const Task& task, CUresult why) {
  if (session.guest_minor < 2) return;  // it would run them
  const auto tell = [&](uint64_t function) {
    (void)session.callbacks.post(session.events, function, why);
  };
  switch (static_cast<wire::Op>(task.header.opcode)) {
    case wire::Op::cuLaunchHostFunc:
    case wire::Op::cuStreamAddCallback: {
      wire::HostFunction body;
      if (task.read(&body)) tell(body.function);
      return;
    }
    case wire::Op::cuGraphLaunch: {
      const auto rest = task.after<wire::LaunchGraph>();
      for (size_t at = 0; at + sizeof(uint64_t) <= rest.size(); at += sizeof(uint64_t)) {
        uint64_t number;
        std::memcpy(&number, rest.data() + at, sizeof number);
        // The others are events, or none.
        if (number != 0 && !wire::handle_tagged(number)) tell(number);
      }
      return;
    }
    default:
      return;
  }
}

}  // namespace

void note_failure(Session& session, const Task& task, CUresult result) {
  if (result != CUDA_ERROR_NOT_READY) session.activity.fail(task.op->name, result);
  if (!is_sticky(result) && task.wants_reply()) return;
  log("%s (record at %llu): %s", task.op->name, static_cast<unsigned long long>(task.position),
      error_name(*session.driver, result).c_str());
  if (!task.wants_reply() && !task.op->may_answer_late(result)) {
    // The guest's library should have answered this itself: a mistake of ours, not the
    // program's. The session is poisoned all the same, so nothing reads what was not written.
    log("BUG: %s may not answer %s late: it is not in its `deferred` list (protocol/api.toml)",
        task.op->name, error_name(*session.driver, result).c_str());
  }
  if (is_sticky(result)) session.print_last_words();
  session.poison.fail(task.seq, task.position, task.header.opcode, result, is_sticky(result));
}

namespace {

// What the driver has been told of a kernel's launches to come (Session::n_function_changes()); who
// tells it waits for the answer.
bool changes_functions(const Task& task) {
  switch (static_cast<wire::Op>(task.header.opcode)) {
    case wire::Op::cuFuncSetAttribute:
    case wire::Op::cuFuncSetCacheConfig:
    case wire::Op::cuFuncSetSharedMemConfig:
    case wire::Op::cuKernelSetAttribute:
    case wire::Op::cuKernelSetCacheConfig:
    case wire::Op::cuCtxSetLimit:
    case wire::Op::cuCtxSetCacheConfig:
    case wire::Op::cuCtxSetSharedMemConfig:
      return true;
    default:
      return false;
  }
}

// Part of who takes a record: each call within a call costs each launch.
[[gnu::always_inline]] inline void perform(Session& session, const Task& task) {
  using Clock = std::chrono::steady_clock;
  const bool is_timed = (task.header.flags & wire::TIMED) != 0;
  const Clock::time_point begun = is_timed ? Clock::now() : Clock::time_point{};
  ReplyWriter reply;
  const bool is_skipped = !task.op->runs_poisoned && session.poison.stops(task.seq);
  const CUresult result = is_skipped ? session.poison.error() : call_handler(session, task, reply);
  if (!is_skipped && result != CUDA_SUCCESS) [[unlikely]]
    note_failure(session, task, result);
  if (task.wants_reply()) {
    if (changes_functions(task)) session.note_function_change();
    uint32_t flags = is_skipped ? wire::REPLY_DEFERRED : 0;
    if (is_timed) flags |= wire::reply_time(Clock::now() - begun);
    session.events.reply(task.header.call_id, result, reply, flags);
  } else if (result != CUDA_SUCCESS) {
    tell_of_functions(session, task, result);
  }
}

}  // namespace

void run_task(Session& session, const Task& task) { perform(session, task); }

Executor::Executor(Session* session, int device, Pool* pool)
    : session_(session),
      device_(device),
      pool_(pool),
      queue_(TaskQueue::Waits::FOR_DEVICES),
      backlog_(session),
      cache_(&session->handles),
      launches_(session, &cache_, device) {}

void Executor::start() { std::thread(&Executor::run, this).detach(); }

void Executor::run() {
  prepare_driver_thread(*session_->driver);
  for (;;) {
    if (step()) {
      spin_.reset();
    } else if (backlog_.empty()) {
      queue_.wait();
    } else {
      spin_.wait();
    }
  }
}

bool Executor::step() {
  Task task;
  if (!queue_.peek(&task)) return release_some();
  take(task);
  queue_.pop(1);
  return true;
}

[[gnu::always_inline]] inline void Executor::execute(Task& task) {
  if (task.op->route == Route::BLOCK) return start_blocking(task);
  // Others may wait for what is held here.
  if (task.wait_for != nullptr) {
    for (Spin spin; !session_->have_done(*task.wait_for);) {
      if (release_held(RELEASE_EVERY) == 0) spin.wait();
    }
  }
  if (task.op->route == Route::ENQUEUE) {
    EnqueueHead head;
    if (!task.read(&head)) session_->violation(task);
    task.cache = &cache_;
    task.stream = cache_.stream(head.stream);
    if (task.stream == nullptr || task.stream->context->device != device_)
      session_->violation(task);
  }
  const bool full = is_full(*session_, task);
  if (full || session_->dependencies.any()) {
    Uses uses = uses_of(*session_, task);
    if (full || session_->dependencies.is_behind(task.seq, uses)) {
      // Who asks does not wait: what would record the event has not even been given to the driver.
      if (static_cast<wire::Op>(task.header.opcode) == wire::Op::EVENT_QUERY) {
        return session_->events.reply(task.header.call_id, CUDA_ERROR_NOT_READY, {});
      }
      return hold(task, std::move(uses));
    }
  }
  perform(*session_, task);
}

void Executor::take(Task& task) {
  execute(task);
  done_seq_.store(task.seq, std::memory_order_release);
  if (session_->dependencies.any() && ++since_release_ >= RELEASE_EVERY) {
    (void)session_->release_some(*this);
  }
}

// Nothing is held that they might come after, or they would not be a run.
void Executor::give_launches() {
  if (const uint64_t last_seq = launches_.give()) {
    done_seq_.store(last_seq, std::memory_order_release);
  }
}

// What waits for the device inside the driver (quiet.h).
static bool frees_memory(const Task& task) {
  return task.op->handler == &mem_free_v2 || task.op->handler == &array_destroy ||
         task.op->handler == &mipmapped_array_destroy;
}

// Another thread ends the context, which must not touch what belongs to who executes records.
static void close_launch_graphs(Session& session, const Task& task, int device) {
  wire::ContextReset body;
  if (!task.read(&body)) session.violation(task);
  const auto context = session.handles.context(body.context);
  if (context == nullptr || session.enter(*context) != CUDA_SUCCESS) return;
  for (const auto& stream : session.handles.streams_of(device)) {
    if (stream->context_handle == body.context) stream->close_graphs(*session.driver);
  }
}

static bool ends_context(const Task& task) {
  return task.op->handler == &ctx_destroy_v2 || task.op->handler == &device_primary_ctx_reset;
}

// The caller waits for the reply: the record may leave ring order from here on.
void Executor::start_blocking(Task task) {
  if (ends_context(task)) close_launch_graphs(*session_, task, device_);
  auto bytes = std::make_shared<std::vector<std::byte>>(task.body.begin(), task.body.end());
  task.body = *bytes;
  std::shared_ptr<Quiet> quiet;
  if (frees_memory(task)) quiet = std::make_shared<Quiet>(*session_, device_);
  const DeviceSeqs before = task.wait_for == nullptr ? DeviceSeqs{} : *task.wait_for;
  const bool accepted = pool_->submit([session = session_, task, bytes, quiet, before] {
    session->wait_for_others(before);
    if (session->dependencies.any()) {
      session->dependencies.wait(task.seq, uses_of(*session, task));
    }
    if (quiet != nullptr) quiet->wait();
    run_task(*session, task);
  });
  if (!accepted) session_->violation(task);
}

void Executor::hold(const Task& task, Uses uses) {
  // Where the backlog is full, too, the ring fills and the guest waits, as it would natively.
  Spin spin;
  while (!backlog_.has_room()) {
    if (!session_->release_some(*this)) spin.wait();
  }
  backlog_.hold(task, std::move(uses));
}

int Executor::release_held(int limit) {
  since_release_ = 0;
  if (backlog_.empty()) return 0;
  return backlog_.release(limit, [this](const Task& task) { run_task(*session_, task); });
}

}  // namespace kvgpu::worker
