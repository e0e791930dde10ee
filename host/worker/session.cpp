// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "control.h"
#include "crash.h"
#include "log.h"
#include "ops.h"
#include "spin.h"

namespace kvgpu::worker {

// Each thread that calls the driver: captures of the guest must not make calls of other threads
// illegal; the guest library keeps the rules of its own threads.
void prepare_driver_thread(const DriverTable& driver) {
  log_crashes_of_thread();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)driver.cuThreadExchangeStreamCaptureMode(&mode);
}

namespace {

Session* the_session = nullptr;
thread_local uint64_t current_serial = 0;  // of the context that enter() has made current

}  // namespace

Session& Session::current() { return *the_session; }

Session::Session(const SessionConfig& config_, std::byte* block_, const DriverTable* driver_,
                 int n_devices_, Control* control_)
    : driver(driver_),
      n_devices(n_devices_),
      block(block_),
      host_page(reinterpret_cast<HostPage*>(block_ + HOST_PAGE_OFF)),
      poison(host_page, config_.wake_fd),
      events(block_, &ending, config_.wake_fd),
      callbacks(reinterpret_cast<const GuestPage*>(block_ + GUEST_PAGE_OFF)),
      watcher(this),
      control(control_),
      config(config_),
      commands_(block_ + COMMAND_RING_OFF, COMMAND_RING_BYTES, &host_page->command_credit),
      pool_([driver_] { prepare_driver_thread(*driver_); }),
      linker_([driver_] { prepare_driver_thread(*driver_); }, 1) {
  the_session = this;
  for (int device = 0; device < n_devices; ++device) {
    executors_.push_back(std::make_unique<Executor>(this, device, &pool_));
  }
}

CUresult Session::link(const std::function<CUresult()>& call) {
  // The linker's: it is still within it when the result is there.
  const auto task = std::make_shared<std::packaged_task<CUresult()>>(call);
  auto result = task->get_future();
  // No more of them than there are tasks of the other pool.
  if (!linker_.submit([task] { (*task)(); })) return CUDA_ERROR_OUT_OF_MEMORY;
  return result.get();
}

CUresult Session::enter(const Context& context) {
  if (current_serial == context.serial) return CUDA_SUCCESS;
  const CUresult result = driver->cuCtxSetCurrent(context.raw);
  if (result == CUDA_SUCCESS) current_serial = context.serial;
  return result;
}

CUresult Session::enter(wire::Handle handle) {
  if (handle == 0) {
    // A call that needs no context; where it does, the driver says so. What was current may be
    // gone.
    if (current_serial != 0) (void)driver->cuCtxSetCurrent(nullptr);
    current_serial = 0;
    return CUDA_SUCCESS;
  }
  const auto context = handles.context(handle);
  return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : enter(*context);
}

CUresult Session::enter(Stream& stream) {
  if (const CUresult bad = enter(*stream.context)) return bad;
  if (stream.raw != nullptr) return CUDA_SUCCESS;
  const std::lock_guard lock(creation_mutex_);
  if (stream.raw != nullptr) return CUDA_SUCCESS;
  CUstream made = nullptr;
  const CUresult result = driver->cuStreamCreateWithPriority(&made, stream.flags, stream.priority);
  if (result == CUDA_SUCCESS) stream.raw = made;
  return result;
}

CUresult Session::print(const Context& context) {
  CUresult result = CUDA_SUCCESS;
  context.while_there([&] {
    result = enter(context);
    if (result == CUDA_SUCCESS) result = driver->cuStreamSynchronize(context.watch_stream);
  });
  output.deliver(events);
  return result;
}

void Session::print_last_words() {
  for (const auto& context : handles.contexts()) (void)print(*context);
  if (guest_minor >= 4) output.deliver_assertions(events);  // an older one prints all it is sent
}

CUresult Session::violation(const Task& task) {
  end_session("the guest broke the protocol in a record " +
                  std::string(task.op ? task.op->name : "with an unknown opcode") + " at " +
                  std::to_string(task.position),
              ExitStatus::VIOLATION);
}

CUresult Session::retire_context(const Context& context, wire::Handle handle,
                                 const Arrays& arrays) {
  const auto addresses = forget_device_ranges(handle);
  bool others = false;
  handles.each_context([&](Context&) { others = true; });
  std::vector<Context> going{context};
  {
    const std::lock_guard lock(extents_mutex_);
    if (others && registered_in_ == context.serial) {
      kept_.push_back(context);
      going.clear();
    } else if (!others) {
      registered_ = false;
      going.insert(going.end(), kept_.begin(), kept_.end());
      kept_.clear();
    }
  }
  CUresult result = CUDA_SUCCESS;
  if (going.empty()) {
    if (const CUresult bad = enter(context)) return bad;
    result = driver->cuCtxSynchronize();
    for (const uint64_t address : addresses) (void)driver->cuMemFree_v2(address);
    for (const CUarray array : arrays.plain) (void)driver->cuArrayDestroy(array);
    for (const CUmipmappedArray array : arrays.mipmapped) {
      (void)driver->cuMipmappedArrayDestroy(array);
    }
  }
  for (const Context& each : going) {
    const CUresult bad = driver->cuCtxDestroy_v2(each.raw);
    if (result == CUDA_SUCCESS) result = bad;
  }
  output.deliver(events);
  return result;
}

uint64_t* Session::progress_word(uint64_t index) const {
  if (index >= N_PROGRESS_WORDS) return nullptr;
  return reinterpret_cast<uint64_t*>(block + PROGRESS_OFF) + index;
}

bool Session::have_done(const DeviceSeqs& before) const {
  for (size_t device = 0; device < executors_.size(); ++device) {
    if (executors_[device]->done_seq() < before[device]) return false;
  }
  return true;
}

void Session::wait_for_others(const DeviceSeqs& before) const {
  for (Spin spin; !have_done(before);) spin.wait();
}

bool Session::read_command() {
  Task task;
  if (commands_.peek(&task.header)) [[likely]] {
    handle_record(task);
    return true;
  }
  if (commands_.error() != RingError::NONE) {
    end_session(to_string(commands_.error()), ExitStatus::VIOLATION);
  }
  return false;
}

void Session::read_commands() {
  prepare_driver_thread(*driver);
  Spin spin;
  Patience patience;
  Gathering gathering;
  for (;;) {
    uint32_t n_found = 0;
    while (read_command() || (executes_here_ && release_some_of_all())) ++n_found;
    if (n_found > 0) {
      spin.reset(patience.limit());
      gathering.found(n_found);
    } else if (gathering.waits()) {
      continue;
    } else if (executes_here_ && holds_any()) {
      spin.wait();
    } else if (!spin.once() && !looks_on(&spin)) {
      if (lanes_ != nullptr) lanes_->rest();
      const Spin::Clock::time_point begun = Spin::Clock::now();
      sleep_until_kicked();
      patience.slept(Spin::Clock::now() - begun);
      spin.reset(patience.limit());
    }
  }
}

// The program waits for its GPU, and will have something to do for us once that is through.
bool Session::looks_on(Spin* spin) const {
  return !Spin::few_cores() && last_mark.is_outstanding() && spin->go_on(LastMark::LOOKS_FOR);
}

void Session::sleep_until_kicked() {
  if (commands_.unpublished()) commands_.publish();
  store_release(host_page->need_wakeup, ++n_sleeps_);
  // The guest commits, then looks at need_wakeup; we set it, then look for a commit: one of us sees
  // the other. Pairs with the fence in the guest's kick_if_asleep().
  fence_full();
  wire::Header header;
  if (!commands_.peek(&header) && commands_.error() == RingError::NONE) {
    pollfd kick{config.kick_fd, POLLIN, 0};
    // The time limit is for a lost kick only: one that goes through an agent and a kvgpud, which
    // may be restarted.
    if (poll(&kick, 1, is_kicked_directly ? -1 : 100) > 0) {
      uint64_t count;
      (void)!::read(config.kick_fd, &count, sizeof count);
    }
  }
  store_release(host_page->need_wakeup, 0);
}

void Session::number(Task* task) {
  task->seq = ++seq_;
  task->position = commands_.position();
  activity.count(task->header.opcode);
}

void Session::take_body(Task* task, std::byte* to) {
  commands_.take_body(task->header, to);
  task->body = {to, task->header.len_bytes - sizeof task->header};
}

void Session::handle_record(Task& task) {
  const wire::Header& header = task.header;
  task.op = find_op(header.opcode);
  if (task.op == nullptr) violation(task);
  number(&task);
  const uint32_t device = wire::target_device(header.target);
  // Who waits for nothing must not fill the pool.
  if (task.op->route == Route::BLOCK && !task.wants_reply()) violation(task);
  const bool direct = task.op->route == Route::DIRECT;
  if (wire::target_endpoint(header.target) != 0 || device >= executors_.size()) violation(task);
  Executor& executor = *executors_[device];
  if (direct || (executes_here_ && !are_several_at_work(task, executor))) {
    if (LaunchRun::is_launch(header) && lanes_->leave(header, executor)) {
      return read_launches(task, executor);
    }
    if (wire::target_thread(header.target) != launching_thread_) others_seq_ = task.seq;
    alignas(16) std::byte body[wire::MAX_RECORD_BYTES];
    take_body(&task, body);
    commands_.prefetch(wire::padded(header.len_bytes));
    if (direct) return handle_direct(task);
    if (lanes_ == nullptr || !lanes_->take(task)) executor.take(task);
    return;
  }
  hand_over(task, executor);
}

// This one, and those that follow it. None is waited for, nor fetched from the processor that has
// just written it, before the first one is given.
void Session::read_launches(const Task& first, Executor& executor) {
  constexpr uint64_t FAR_BEHIND_BYTES = 16 * wire::RECORD_ALIGN_BYTES;
  // Records, since another thread has given one: it would wait, too.
  constexpr uint64_t ALONE_FOR = 1024;
  launching_thread_ = wire::target_thread(first.header.target);
  LaunchRun& run = executor.launches();
  run.be_patient(first.seq - others_seq_ > ALONE_FOR);
  const uint64_t begin = commands_.position();
  run.next() = first;
  take_body(&run.next(), run.room());
  const auto has_another = [&] {
    if (run.is_full() || !commands_.is_far_behind(FAR_BEHIND_BYTES)) return false;
    const wire::Header& next = run.next().header;
    return commands_.peek(&run.next().header) && LaunchRun::is_launch(next) &&
           next.target == first.header.target;
  };
  while (run.add_next()) {
    if (!has_another()) {
      commands_.prefetch(commands_.position() - begin);
      return executor.give_launches();
    }
    Task& next = run.next();
    next.op = first.op;
    number(&next);
    take_body(&next, run.room());
  }
  Task other = run.next();
  executor.give_launches();
  executor.take(other);
}

// To the executor's thread.
void Session::hand_over(Task task, Executor& executor) {
  const wire::Header& header = task.header;
  std::byte* const record = executor.queue().reserve(wire::padded(header.len_bytes));
  commands_.take(header, record);
  task.body = {record + sizeof header, header.len_bytes - sizeof header};
  const DeviceSeqs wait_for = device_order_.place(task, wire::target_device(header.target));
  task.wait_for = &wait_for;
  executor.queue().commit(task);
}

void Session::handle_direct(const Task& task) {
  wire::AckError body;
  if (!task.read(&body)) violation(task);
  poison.acknowledge(body.epoch, task.seq);
}

void Session::start() {
  executes_here_ = true;
  watcher.start();
}

// From this record on, which is the first that is not executed here.
bool Session::are_several_at_work(const Task& task, Executor& executor) {
  if (task.op->route != Route::ENQUEUE) return false;
  if (lanes_ == nullptr) lanes_ = std::make_unique<Lanes>(this, &executor);
  if (lanes_->are_of(executor)) [[likely]]
    return false;
  if (task.seq - elsewhere_since_ > ELSEWHERE_WITHIN) {
    elsewhere_since_ = task.seq;
    n_elsewhere_ = 0;
  }
  if (++n_elsewhere_ < MUCH_ELSEWHERE) return false;
  give_each_a_thread();
  return true;
}

// What has been executed or is held so far needs no order any more but that of what is held.
void Session::give_each_a_thread() {
  lanes_->settle();
  executes_here_ = false;
  log("several devices have work: a thread each from record %llu on",
      static_cast<unsigned long long>(seq_));
  for (const auto& executor : executors_) executor->start();
}

// `executes_here_` is the reader's, and written last before the executors' threads start.
bool Session::release_some(Executor& executor) {
  return executes_here_ ? release_some_of_all() : executor.release_some();
}

bool Session::release_some_of_all() {
  bool any = false;
  for (const auto& executor : executors_) any |= executor->release_some();
  return any;
}

// What may go later, without another record.
bool Session::holds_any() {
  // First: whatever is held, lanes may have to be told of their last records.
  if (lanes_ != nullptr && lanes_->are_busy()) return true;
  const auto holds = [](const auto& executor) { return executor->holds_any(); };
  if (std::ranges::any_of(executors_, holds)) return true;
  if (lanes_ != nullptr) lanes_->relieve();
  return false;
}

bool Session::execute_one() {
  return std::ranges::any_of(executors_, [](const auto& executor) { return executor->step(); });
}

}  // namespace kvgpu::worker
