// SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "module_loader.h"

namespace software_gpu {
namespace {

constexpr uint64_t DEFAULT_MEMORY_MIB = 4096;
constexpr uint64_t MAX_DEVICES = 16;

std::atomic<uint64_t> next_context_id{1};

/// 0, and a line on standard error, where the variable is set to anything else than 1 to `max`.
uint64_t number_from_environment(const char* name, uint64_t otherwise, uint64_t max) {
  const char* text = getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const unsigned long long value = strtoull(text, &end, 10);
  if (*end != 0 || value == 0 || value > max) {
    fprintf(stderr, "kvgpu software GPU: %s=%s is not a number from 1 to %llu: no device\n", name,
            text, static_cast<unsigned long long>(max));
    return 0;
  }
  return value;
}

// Of those there are, CUDA_VISIBLE_DEVICES' ordinals up to the first that is none.
std::vector<int> visible_units(uint64_t n_devices) {
  std::vector<int> units;
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (uint64_t i = 0; i < n_devices; ++i) units.push_back(static_cast<int>(i));
    return units;
  }
  for (char* end = nullptr; *text; text = *end == ',' ? end + 1 : end) {
    const unsigned long unit = strtoul(text, &end, 10);
    if (end == text || (*end != 0 && *end != ',') || unit >= n_devices) break;
    units.push_back(static_cast<int>(unit));
  }
  return units;
}

}  // namespace

LoadedModule::~LoadedModule() {
  if (module) release_variables(*module, *memory);
}

Context::Context(Device& device_)
    : device(device_), id(next_context_id++), legacy(std::make_shared<Stream>(*this, 0, 0)) {
  legacy->is_legacy = true;
}

GreenContext::GreenContext(Context& primary_, unsigned n_sms_)
    : primary(primary_),
      n_sms(n_sms_),
      id(next_context_id++),
      legacy(std::make_shared<Stream>(primary_, 0, 0, this)) {
  legacy->is_legacy = true;
}

std::vector<std::shared_ptr<Stream>> Context::all_streams(const GreenContext* only) {
  std::vector<std::shared_ptr<Stream>> result = streams.all();
  result.push_back(legacy);
  {
    std::lock_guard lock(per_thread_mutex);
    std::erase_if(per_thread_streams, [](const auto& stream) { return stream.expired(); });
    for (const auto& weak : per_thread_streams)
      if (auto stream = weak.lock()) result.push_back(std::move(stream));
    for (const auto& green : greens) result.push_back(green->legacy);
  }
  if (only) std::erase_if(result, [only](const auto& stream) { return stream->green != only; });
  return result;
}

std::vector<std::shared_ptr<Capture>> Context::captures_in_the_way(const Stream& stream) {
  std::vector<std::shared_ptr<Capture>> found;
  if (!stream.is_legacy) return found;
  for (const auto& member : all_streams()) {
    if (member->capture && member->is_blocking() && member->green == stream.green) {
      found.push_back(member->capture);
    }
  }
  return found;
}

CUresult Context::submit(Stream& stream, Operation operation, Point* end) {
  std::unique_lock lock(order_mutex);
  while (!stream.capture && stream.queue->is_full()) {
    lock.unlock();
    stream.queue->wait_for_room();
    lock.lock();
  }
  if (stream.capture) {
    if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    GraphNode* node = stream.capture->graph->add(std::move(operation), stream.capture_front);
    stream.capture_front = {node};
    return CUDA_SUCCESS;
  }
  if (const auto captures = captures_in_the_way(stream); !captures.empty()) {
    captures.front()->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const Point point = stream.queue->push(std::move(operation), dependencies_of(stream));
  if (end) *end = point;
  return CUDA_SUCCESS;
}

std::vector<Point> Context::dependencies_of(const Stream& stream) {
  std::vector<Point> after;
  const auto add = [&after](Point point) {
    if (!point.reached()) after.push_back(std::move(point));
  };
  if (stream.is_legacy) {
    for (const auto& other : all_streams())
      if (other->is_blocking() && other->green == stream.green) add(other->queue->end());
    std::erase_if(orphans, [](const Point& point) { return point.reached(); });
    for (const Point& orphan : orphans) add(orphan);
  } else if (stream.is_blocking()) {
    add((stream.green ? stream.green->legacy : legacy)->queue->end());
  }
  for (std::vector<Point>* const list : {&gates, stream.green ? &stream.green->gates : &gates}) {
    std::erase_if(*list, [](const Point& point) { return point.reached(); });
    for (const Point& gate : *list) add(gate);
  }
  return after;
}

std::vector<Point> Context::ends(const GreenContext* only) {
  std::vector<Point> result;
  for (const auto& stream : all_streams(only)) result.push_back(stream->queue->end());
  result.insert(result.end(), orphans.begin(), orphans.end());
  return result;
}

void Context::drain(const GreenContext* only) {
  std::unique_lock lock(order_mutex);
  const std::vector<Point> points = ends(only);
  lock.unlock();
  for (const Point& point : points) point.wait();
}

std::shared_ptr<Stream> Context::stream_of(CUstream handle) {
  GreenContext* const green = current().context == this ? current().green : nullptr;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return green ? green->legacy : legacy;
  if (handle != CU_STREAM_PER_THREAD) return streams.find(handle);
  if (green) return nullptr;  // CUDA 13.0, cuStreamGetCtx_v2: there is none in a green context
  static thread_local std::unordered_map<Context*, std::shared_ptr<Stream>> mine;
  std::shared_ptr<Stream>& stream = mine[this];
  if (!stream) {
    stream = std::make_shared<Stream>(*this, 0, 0);
    std::lock_guard lock(per_thread_mutex);
    per_thread_streams.push_back(stream);
  }
  return stream;
}

void Context::reset() {
  streams.clear();
  forget_arrays(*this);
  clear_sticky_error();
  {
    std::lock_guard lock(per_thread_mutex);
    for (const auto& green : greens) green->destroyed = true;
    greens.clear();
  }
  std::lock_guard lock(order_mutex);
  gates.clear();
  for (const auto& capture : captures) {
    capture->invalid = true;
    if (capture->is_new_graph) Driver::instance().graphs.take(capture->graph.get());
  }
  captures.clear();
  limits.clear();
  heap.reset();
  std::lock_guard without_peers(peers_mutex);
  peers.clear();
  flags = 0;
}

Driver& Driver::instance() {
  static Driver* driver = new Driver;
  return *driver;
}

bool Driver::initialise() {
  std::lock_guard lock(mutex_);
  if (initialised_) return true;
  static const int follows_forks = pthread_atfork(nullptr, nullptr, [] { instance().fork(); });
  (void)follows_forks;
  const uint64_t n_devices = number_from_environment("KVGPU_SOFTWARE_GPU_DEVICES", 1, MAX_DEVICES);
  const uint64_t memory_mib =
      number_from_environment("KVGPU_SOFTWARE_GPU_MEMORY_MIB", DEFAULT_MEMORY_MIB, 1 << 20);
  if (n_devices == 0 || memory_mib == 0) return false;
  for (const int unit : visible_units(n_devices)) {
    const auto ordinal = static_cast<int>(devices.size());
    devices.push_back(std::make_unique<Device>(ordinal, unit, memory_mib << 20));
  }
  initialised_ = !devices.empty();
  return initialised_;
}

void Driver::fork() {
  is_forked_child_ = initialised();
  initialised_ = false;
}

Device* Driver::device(CUdevice ordinal) {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= devices.size()) return nullptr;
  return devices[static_cast<size_t>(ordinal)].get();
}

AllMemory::AllMemory(Device& first) {
  snapshots_.push_back(first.memory.snapshot());
  for (const auto& device : Driver::instance().devices)
    if (device.get() != &first) snapshots_.push_back(device->memory.snapshot());
}

bool AllMemory::covers(uint64_t address, uint64_t size_bytes, bool to_write) const {
  for (const auto& snapshot : snapshots_)
    if (snapshot->find(address)) return snapshot->covers(address, size_bytes, to_write);
  return false;
}

bool AllMemory::is_known(uint64_t address) const {
  for (const auto& snapshot : snapshots_)
    if (snapshot->find(address)) return true;
  return Driver::instance().virtual_memory.reservation_of(address) != nullptr;
}

namespace {

/// Whether kernels of a context reach memory that belongs to another device.
bool reaches(const Context& context, const Allocation& allocation, const Device& other) {
  switch (allocation.kind) {
    case MemoryKind::HOST:
      return true;  // with unified addressing it is portable, whatever its flags say
    case MemoryKind::DEVICE:
    case MemoryKind::IMPORTED:
      if (allocation.pool) {
        std::lock_guard lock(allocation.pool->mutex);
        return allocation.pool->guests.contains(&context.device);
      }
      [[fallthrough]];
    case MemoryKind::MODULE:
      return std::ranges::any_of(context.peers,
                                 [&](const Context* peer) { return &peer->device == &other; });
    default:
      return false;  // stands in the table of each device that reaches it
  }
}

}  // namespace

std::shared_ptr<const Snapshot> Context::visible_memory() {
  auto own = device.memory.snapshot();
  auto merged = std::make_shared<Snapshot>();
  std::lock_guard lock(peers_mutex);
  for (const auto& other : Driver::instance().devices) {
    if (other.get() == &device) continue;
    for (const auto& allocation : other->memory.snapshot()->allocations)
      if (reaches(*this, *allocation, *other)) merged->allocations.push_back(allocation);
  }
  if (merged->allocations.empty()) return own;
  merged->allocations.insert(merged->allocations.end(), own->allocations.begin(),
                             own->allocations.end());
  std::ranges::sort(merged->allocations, {}, [](const auto& a) { return a->base; });
  return merged;
}

std::shared_ptr<const Allocation> Driver::find(uint64_t address, Device** device) {
  for (const auto& candidate : devices) {
    auto allocation = candidate->memory.find(address);
    if (!allocation) continue;
    if (device) *device = candidate.get();
    return allocation;
  }
  return nullptr;
}

Device* Driver::device_of(uint64_t address) {
  Device* device = nullptr;
  find(address, &device);
  return device;
}

CUresult Driver::allocate_managed(Memory& memory, uint64_t size_bytes, unsigned flags,
                                  uint64_t* address) {
  const CUresult result = memory.allocate(size_bytes, MemoryKind::MANAGED, flags, address);
  if (result != CUDA_SUCCESS) return result;
  advice.forget(*address, size_bytes);  // of what was there before
  const auto allocation = memory.find(*address);
  for (const auto& device : devices)
    if (&device->memory != &memory) device->memory.share(allocation);
  return CUDA_SUCCESS;
}

CUresult Driver::release_managed(uint64_t address) {
  for (const auto& device : devices) {
    const CUresult result =
        device->memory.release(address, MemoryKind::MANAGED, MemoryKind::MANAGED);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUcontext ContextHandle::handle() const {
  return green ? reinterpret_cast<CUcontext>(green) : reinterpret_cast<CUcontext>(context);
}

ContextHandle& current() {
  static thread_local ContextHandle mine;
  return mine;
}

ContextHandle find_context(CUcontext handle) {
  const Driver& driver = Driver::instance();
  for (const auto& device : driver.devices)
    if (reinterpret_cast<CUcontext>(&device->context) == handle) return {&device->context};
  if (const auto green = driver.green_contexts.find(handle))
    return green->is_converted && !green->destroyed ? ContextHandle{&green->primary, green.get()}
                                                    : ContextHandle{};
  const auto found = driver.contexts.find(handle);
  return {found && !found->destroyed ? found.get() : nullptr};
}

CUresult enter_without_context() {
  if (!Driver::instance().initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  return in_host_function() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

CUresult enter_without_error() {
  if (const CUresult result = enter_without_context(); result != CUDA_SUCCESS) return result;
  return current_context() ? current_context()->sticky_error() : CUDA_SUCCESS;
}

Context& any_context() {
  Context* const context = current_context();
  return context && !context->destroyed ? *context : Driver::instance().devices.front()->context;
}

CUresult enter(Context** context) {
  if (const CUresult result = enter_without_context(); result != CUDA_SUCCESS) return result;
  *context = current_context();
  if (!*context) return CUDA_ERROR_INVALID_CONTEXT;
  if (current().green && current().green->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return (*context)->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : (*context)->sticky_error();
}

}  // namespace software_gpu
