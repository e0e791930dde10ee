// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "control.h"
#include "log.h"
#include "ops.h"
#include "spin.h"

namespace kvgpu::worker {

// Each thread that calls the driver: captures of the guest must not make calls of other threads
// illegal; the guest library keeps the rules of its own threads.
void prepare_driver_thread(const DriverTable& driver) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)driver.cuThreadExchangeStreamCaptureMode(&mode);
}

namespace {

Session* the_session = nullptr;
thread_local uint64_t current_serial = 0;  // of the context that enter() has made current

uint64_t bytes_of(uint64_t bytes) { return bytes; }
uint64_t bytes_of(const Session::DeviceRange& range) { return range.bytes; }
bool is_mapping(uint64_t) { return false; }
bool is_mapping(const Session::DeviceRange& range) { return range.is_mapping; }

// Is all of [address, address + len_bytes) inside one of the ranges (beginning -> bytes), or in
// mappings that adjoin?
template <typename Ranges>
bool covers(const Ranges& ranges, uint64_t address, uint64_t len_bytes) {
  const auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return false;
  for (auto at = std::prev(after);;) {
    const uint64_t offset = address - at->first, bytes = bytes_of(at->second);
    if (offset > bytes) return false;
    if (len_bytes <= bytes - offset) return true;
    address = at->first + bytes;
    len_bytes -= bytes - offset;
    const auto next = std::next(at);
    if (next == ranges.end() || next->first != address) return false;
    if (!is_mapping(at->second) || !is_mapping(next->second)) return false;
    at = next;
  }
}

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

CUresult Session::violation(const Task& task) {
  end_session("the guest broke the protocol in a record " +
                  std::string(task.op ? task.op->name : "with an unknown opcode") + " at " +
                  std::to_string(task.position),
              ExitStatus::VIOLATION);
}

CUresult Session::register_range(uint64_t address, uint64_t len_bytes) {
  auto* const pointer = reinterpret_cast<void*>(address);
  constexpr unsigned FLAGS = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (const CUresult bad = driver->cuMemHostRegister_v2(pointer, len_bytes, FLAGS)) return bad;
  CUdeviceptr device_address = 0;
  CUresult result = driver->cuMemHostGetDevicePointer_v2(&device_address, pointer, 0);
  // "One address" is what everything else builds on.
  if (result == CUDA_SUCCESS && device_address != address) result = CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS) (void)driver->cuMemHostUnregister(pointer);
  return result;
}

CUresult Session::register_session_memory(const Context& context) {
  const std::lock_guard lock(extents_mutex_);
  if (registered_) return CUDA_SUCCESS;
  extents_[reinterpret_cast<uint64_t>(slab())] = SLAB_BYTES;
  const auto progress = reinterpret_cast<uint64_t>(block + PROGRESS_OFF);
  if (const CUresult bad = register_range(progress, PROGRESS_BYTES)) return bad;
  for (const auto& [address, len_bytes] : extents_) {
    if (const CUresult bad = register_range(address, len_bytes)) return bad;
  }
  registered_ = true;
  registered_in_ = context.serial;
  return CUDA_SUCCESS;
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

void Session::end_registrations(const Context& going) {
  const std::lock_guard lock(extents_mutex_);
  if (!registered_ || registered_in_ != going.serial) return;
  registered_ = false;
  (void)driver->cuMemHostUnregister(block + PROGRESS_OFF);
  for (const auto& [address, len_bytes] : extents_) {
    (void)driver->cuMemHostUnregister(reinterpret_cast<void*>(address));
  }
}

CUresult Session::enter_registered() {
  std::vector<Context> candidates;
  handles.each_context([&](Context& context) { candidates.push_back(context); });
  uint64_t wanted;
  {
    const std::lock_guard lock(extents_mutex_);
    if (!registered_) return CUDA_ERROR_INVALID_CONTEXT;
    wanted = registered_in_;
    candidates.insert(candidates.end(), kept_.begin(), kept_.end());
  }
  for (const Context& context : candidates) {
    if (context.serial == wanted) return enter(context);
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult Session::add_extent(uint64_t region_off, uint64_t len_bytes) {
  if (region_off > config.region_bytes || len_bytes > config.region_bytes - region_off) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto* const address = reinterpret_cast<void*>(address_of(region_off));
  if (mmap(address, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, config.region_fd,
           static_cast<off_t>(region_off)) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const std::lock_guard lock(extents_mutex_);
  const CUresult result = register_range(reinterpret_cast<uint64_t>(address), len_bytes);
  if (result != CUDA_SUCCESS) return result;
  extents_[reinterpret_cast<uint64_t>(address)] = len_bytes;
  return CUDA_SUCCESS;
}

CUresult Session::add_registered(uint64_t address, uint64_t len_bytes) {
  const CUresult entered = enter_registered();
  const std::lock_guard lock(extents_mutex_);
  if (registered_) {  // else with the first context
    if (entered != CUDA_SUCCESS) return entered;
    if (const CUresult bad = register_range(address, len_bytes)) return bad;
  }
  extents_[address] = len_bytes;
  return CUDA_SUCCESS;
}

void Session::remove_registered(uint64_t address) {
  const bool entered = enter_registered() == CUDA_SUCCESS;
  const std::lock_guard lock(extents_mutex_);
  extents_.erase(address);
  if (entered) (void)driver->cuMemHostUnregister(reinterpret_cast<void*>(address));
}

bool Session::is_session_memory(uint64_t address, uint64_t len_bytes) const {
  const std::lock_guard lock(extents_mutex_);
  return covers(extents_, address, len_bytes);
}

void Session::add_device_range(uint64_t address, const DeviceRange& range) {
  if (range.bytes == 0) return;
  const std::lock_guard lock(device_ranges_mutex_);
  // When the driver gives an address out anew, what had it is gone: a graph, a module's variable.
  auto at = device_ranges_.upper_bound(address);
  if (at != device_ranges_.begin()) {
    const auto before = std::prev(at);
    if (address - before->first < before->second.bytes) at = before;
  }
  while (at != device_ranges_.end() && at->first < address + range.bytes) {
    uncount(at->second);
    at = device_ranges_.erase(at);
  }
  device_ranges_[address] = range;
  if (!range.of_graph) memory_bytes_ += range.bytes;
  peak_memory_bytes_ = std::max(peak_memory_bytes_, memory_bytes_);
}

void Session::uncount(const DeviceRange& range) {
  if (!range.of_graph) memory_bytes_ -= range.bytes;
}

Session::DeviceRange Session::remove_device_range(uint64_t address) {
  const std::lock_guard lock(device_ranges_mutex_);
  const auto found = device_ranges_.find(address);
  if (found == device_ranges_.end()) return {};
  const DeviceRange range = found->second;
  if (range.of_graph) return range;
  uncount(range);
  device_ranges_.erase(found);
  return range;
}

std::vector<uint64_t> Session::forget_device_ranges(wire::Handle context) {
  const std::lock_guard lock(device_ranges_mutex_);
  std::vector<uint64_t> addresses;
  std::erase_if(device_ranges_, [&](const auto& item) {
    if (item.second.context != context) return false;
    uncount(item.second);
    if (!item.second.of_graph) addresses.push_back(item.first);
    return true;
  });
  return addresses;
}

void Session::forget(wire::Handle handle) {
  handles.remove(handle);
  if (wire::handle_kind(handle) != wire::Kind::MODULE) return;
  const std::lock_guard lock(device_ranges_mutex_);
  std::erase_if(device_ranges_, [&](const auto& item) {
    if (item.second.module != handle) return false;
    uncount(item.second);
    return true;
  });
}

void Session::add_mapping(uint64_t address, uint64_t bytes) {
  add_device_range(address, {.bytes = bytes, .context = 0, .is_mapping = true});
}

std::vector<std::pair<uint64_t, uint64_t>> Session::take_mappings(uint64_t address,
                                                                  uint64_t bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  const std::lock_guard lock(device_ranges_mutex_);
  auto at = device_ranges_.lower_bound(address);
  while (at != device_ranges_.end() && at->first - address < bytes) {
    const bool inside = at->second.bytes <= bytes - (at->first - address);
    if (!at->second.is_mapping || !inside) {
      ++at;
      continue;
    }
    taken.emplace_back(at->first, at->second.bytes);
    uncount(at->second);
    at = device_ranges_.erase(at);
  }
  return taken;
}

bool Session::overlaps_mapping(uint64_t address, uint64_t bytes) const {
  const std::lock_guard lock(device_ranges_mutex_);
  const auto after = device_ranges_.lower_bound(address);
  if (after != device_ranges_.end() && after->first - address < bytes) return true;
  if (after == device_ranges_.begin()) return false;
  const auto& [begin, range] = *std::prev(after);
  return address - begin < range.bytes;
}

bool Session::is_guest_memory(uint64_t address, uint64_t len_bytes) const {
  {
    const std::lock_guard lock(device_ranges_mutex_);
    if (covers(device_ranges_, address, len_bytes)) return true;
  }
  return is_session_memory(address, len_bytes);
}

std::vector<uint64_t> Session::device_bytes() const {
  std::map<wire::Handle, uint64_t> of_contexts;
  {
    const std::lock_guard lock(device_ranges_mutex_);
    for (const auto& [address, range] : device_ranges_) {
      if (!range.of_graph) of_contexts[range.context] += range.bytes;
    }
  }
  std::vector<uint64_t> bytes(static_cast<size_t>(n_devices));
  for (const auto& [handle, context_bytes] : of_contexts) {
    const auto context = handles.context(handle);
    if (context != nullptr) bytes[static_cast<size_t>(context->device)] += context_bytes;
  }
  return bytes;
}

std::pair<uint64_t, uint64_t> Session::memory_and_peak() const {
  const std::lock_guard lock(device_ranges_mutex_);
  return {memory_bytes_, peak_memory_bytes_};
}

uint64_t* Session::progress_word(uint64_t index) const {
  if (index >= N_PROGRESS_WORDS) return nullptr;
  return reinterpret_cast<uint64_t*>(block + PROGRESS_OFF) + index;
}

namespace {

// Calls that concern work of more than their own device: events, and what blocks (it may free what
// others use).
bool crosses_devices(const Task& task) {
  switch (static_cast<wire::Op>(task.header.opcode)) {
    case wire::Op::cuStreamWaitEvent:
    case wire::Op::cuCtxWaitEvent:
    case wire::Op::cuEventDestroy_v2:
    case wire::Op::cuEventElapsedTime_v2:
      return true;
    default:
      return task.op->route == Route::BLOCK;
  }
}

}  // namespace

void Session::wait_for_others(const DeviceSeqs& after) const {
  for (size_t device = 0; device < executors_.size(); ++device) {
    Spin spin;
    while (executors_[device]->done_seq() < after[device]) spin.wait();
  }
}

bool Session::read_command() {
  wire::Header header;
  if (commands_.peek(&header)) {
    handle_record(header);
    return true;
  }
  if (commands_.error() != RingError::NONE) {
    end_session(to_string(commands_.error()), ExitStatus::VIOLATION);
  }
  return false;
}

void Session::read_commands() {
  Executor* const own = executes_here_ ? executors_[0].get() : nullptr;
  if (own != nullptr) prepare_driver_thread(*driver);
  Spin spin;
  Patience patience;
  for (;;) {
    if (read_command() || (own != nullptr && own->release_some())) {
      spin.reset();
    } else if (own != nullptr && own->holds_any()) {
      spin.wait();
    } else if (!spin.once()) {
      const Spin::Clock::time_point begun = Spin::Clock::now();
      sleep_until_kicked();
      patience.slept(Spin::Clock::now() - begun);
      spin.reset(patience.limit());
    }
  }
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

void Session::handle_record(const wire::Header& header) {
  Task task{};
  task.header = header;
  task.seq = ++seq_;
  task.position = commands_.position();
  task.op = find_op(header.opcode);
  if (task.op == nullptr) violation(task);
  activity.count(header.opcode);
  const uint32_t device = wire::target_device(header.target);
  // Who waits for nothing must not fill the pool.
  if (task.op->route == Route::BLOCK && !task.wants_reply()) violation(task);
  const bool direct = task.op->route == Route::DIRECT;
  if (wire::target_endpoint(header.target) != 0 || device >= executors_.size()) violation(task);
  Executor& executor = *executors_[device];
  if (direct || executes_here_) {
    alignas(8) std::byte record[wire::MAX_RECORD_BYTES];
    commands_.take(header, record);
    task.body = {record + sizeof header, header.len_bytes - sizeof header};
    return direct ? handle_direct(task) : executor.take(task);
  }
  commands_.take(header, executor.queue().reserve(wire::padded(header.len_bytes)));
  if (executors_.size() > 1 && crosses_devices(task)) {
    for (size_t other = 0; other < executors_.size(); ++other) {
      if (other != device) task.wait_for[other] = executors_[other]->routed_seq;
    }
  }
  executor.routed_seq = task.seq;
  executor.queue().commit(task);
}

void Session::handle_direct(const Task& task) {
  wire::AckError body;
  if (!task.read(&body)) violation(task);
  poison.acknowledge(body.epoch, task.seq);
}

void Session::start() {
  executes_here_ = executors_.size() == 1;
  for (const auto& executor : executors_) {
    if (!executes_here_) executor->start();
  }
  watcher.start();
}

bool Session::execute_one() {
  return std::ranges::any_of(executors_, [](const auto& executor) { return executor->step(); });
}

}  // namespace kvgpu::worker
