// SPDX-License-Identifier: Apache-2.0
// Devices, their primary contexts, and the tables of handles.
// A handle is the address of its object; every handle that a caller passes is looked up before use.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "advice.h"
#include "array.h"
#include "block.h"
#include "device_heap.h"
#include "graph.h"
#include "graph_memory.h"
#include "green_context.h"
#include "image.h"
#include "memory.h"
#include "program.h"
#include "stream.h"
#include "virtual_memory.h"

namespace software_gpu {

/// Objects by handle. Thread-safe.
template <class T>
class Table {
 public:
  void add(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    objects_.emplace(object.get(), std::move(object));
  }
  std::shared_ptr<T> find(const void* handle) const {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> take(const void* handle) {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  std::vector<std::shared_ptr<T>> all() const {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> result;
    result.reserve(objects_.size());
    for (const auto& [handle, object] : objects_) result.push_back(object);
    return result;
  }
  void clear() {
    std::unordered_map<const void*, std::shared_ptr<T>> doomed;
    std::lock_guard lock(mutex_);
    objects_.swap(doomed);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

struct LoadedModule;
struct SurfaceReference;
struct TextureReference;

/// What CUfunction and CUkernel point to.
struct Kernel {
  LoadedModule* owner = nullptr;
  const Function* function = nullptr;
  int max_dynamic_shared_bytes = 48 << 10;
  int preferred_carveout = -1;
};

/// What CUmodule and CUlibrary point to.
struct LoadedModule {
  ~LoadedModule();
  struct Context* context = nullptr;
  bool is_library = false;  // belongs to no context
  Memory* memory = nullptr;
  std::shared_ptr<Module> module;
  std::map<std::string, std::shared_ptr<Kernel>, std::less<>> kernels;
  std::map<std::string, std::shared_ptr<TextureReference>, std::less<>> texture_references;
  std::map<std::string, std::shared_ptr<SurfaceReference>, std::less<>> surface_references;
};

struct Device;

struct Context {
  explicit Context(Device& device);
  Device& device;
  const uint64_t id;
  CUresult sticky_error() const {
    return static_cast<CUresult>(sticky_.load(std::memory_order_acquire));
  }
  void set_sticky_error(CUresult error) {
    int none = CUDA_SUCCESS;
    sticky_.compare_exchange_strong(none, error);
  }
  void clear_sticky_error() { sticky_.store(CUDA_SUCCESS); }
  /// cuCtxDestroy was called: threads that still have it current are told so.
  std::atomic<bool> destroyed{false};

  /// Put work on a stream, or into the graph that the stream is captured to.
  [[nodiscard]] CUresult submit(Stream& stream, Operation operation, Point* end = nullptr);
  /// Wait for all work of all streams, or of those of one green context.
  void drain(const GreenContext* only = nullptr);
  /// The ends of that work. Under order_mutex.
  std::vector<Point> ends(const GreenContext* only);
  /// All streams, default ones and those of green contexts included, or those of one.
  std::vector<std::shared_ptr<Stream>> all_streams(const GreenContext* only = nullptr);
  /// Of blocking streams, which work of this legacy stream would wait for. Under order_mutex.
  std::vector<std::shared_ptr<Capture>> captures_in_the_way(const Stream& stream);
  std::shared_ptr<Stream> stream_of(CUstream handle);
  /// What its kernels allocate from, made when it is first asked for.
  [[nodiscard]] CUresult find_heap(std::shared_ptr<DeviceHeap>* found);
  /// What kernels may touch: the memory of the device, and what it reaches of other devices'.
  std::shared_ptr<const Snapshot> visible_memory();
  /// Make every handle invalid; the caller has drained.
  void reset();

  std::mutex order_mutex;  // enqueue order across streams, capture state, Event::last
  std::shared_ptr<Stream> legacy;
  Table<Stream> streams;
  std::mutex per_thread_mutex;
  std::vector<std::weak_ptr<Stream>> per_thread_streams;
  std::vector<std::shared_ptr<GreenContext>> greens;  // that live; under per_thread_mutex, too
  std::vector<std::shared_ptr<Capture>> captures;     // active ones, under order_mutex
  std::vector<Point> orphans;  // ends of destroyed streams, under order_mutex
  std::vector<Point> gates;    // all later work waits for; under order_mutex
  PrintBuffer printed;
  std::map<CUlimit, size_t> limits;
  std::shared_ptr<DeviceHeap> heap;  // under order_mutex
  std::mutex peers_mutex;
  std::set<const Context*> peers;  // whose memory kernels reach; under its mutex
  unsigned flags = 0;
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;

 private:
  std::vector<Point> dependencies_of(const Stream& stream);
  std::atomic<int> sticky_{CUDA_SUCCESS};
};

/// What CUmemoryPool points to: an account, as all memory is the device's.
struct MemPool : std::enable_shared_from_this<MemPool> {
  MemPool(Device& device_, uint64_t max_bytes_) : device(device_), max_bytes(max_bytes_) {}
  /// Gives the bytes back when the last copy of it is gone. Null: the pool is full.
  std::shared_ptr<MemPool> charge(uint64_t n_bytes);
  /// Of what nobody uses it reserves so much at most that all of it is n_bytes.
  void trim(uint64_t n_bytes);
  Device& device;
  const uint64_t max_bytes;  // 0: no limit
  std::mutex mutex;          // of what follows
  uint64_t used_bytes = 0, high_bytes = 0, release_threshold = 0;
  // Used, or freed and not given back to the device yet. In numbers only: freed memory is the
  // device's at once.
  uint64_t reserved_bytes = 0, reserved_high_bytes = 0;
  std::map<CUmemPool_attribute, bool> flags;
  std::set<const Device*> guests;  // other devices that reach its memory
  /// Of a pool that can be exported. Null: its memory is of the device's files.
  std::shared_ptr<FileMemory> files;
  std::shared_ptr<const SharedFile> file;
  bool is_imported = false;  // it gives no memory
};

struct Device {
  Device(int ordinal_, int unit_, uint64_t memory_bytes)
      : ordinal(ordinal_), unit(unit_), memory(ordinal_, memory_bytes), context(*this) {}
  const int ordinal;
  const int unit;  // its ordinal where CUDA_VISIBLE_DEVICES hides none
  Memory memory;
  GraphMemories graph_memories{memory};
  std::mutex mutex;
  unsigned n_retained = 0;                // of the primary context
  std::shared_ptr<MemPool> default_pool;  // made when it is first asked for; under the mutex
  std::weak_ptr<MemPool> current_pool;    // none: the default one; under the mutex
  Context context;
};

/// What a copy may name: the memory of all devices, as copies need no peer access.
class AllMemory {
 public:
  /// Where two devices see the same memory, `first` says what may be done with it.
  explicit AllMemory(Device& first);
  bool covers(uint64_t address, uint64_t size_bytes, bool to_write) const;
  /// False for the pageable memory of the host only.
  bool is_known(uint64_t address) const;

 private:
  std::vector<std::shared_ptr<const Snapshot>> snapshots_;
};

/// Everything of the process. Never destroyed: driver threads may outlive main().
struct Driver {
  static Driver& instance();
  bool initialised() const { return initialised_.load(std::memory_order_acquire); }
  /// As with driver 580 a child of a process that has CUDA has none, and gets none.
  bool is_forked_child() const { return is_forked_child_; }
  /// False where the configuration is wrong, which standard error says.
  bool initialise();
  Device* device(CUdevice ordinal);
  Device* device_of(uint64_t address);
  /// Memory of any device; `device` is the first that sees it.
  std::shared_ptr<const Allocation> find(uint64_t address, Device** device = nullptr);
  /// Memory that the host and all devices reach.
  [[nodiscard]] CUresult allocate_managed(Memory& memory, uint64_t size_bytes, unsigned flags,
                                          uint64_t* address);
  [[nodiscard]] CUresult release_managed(uint64_t address);
  std::vector<std::unique_ptr<Device>> devices;
  Table<Context> contexts;  // those of cuCtxCreate
  Table<GreenContext> green_contexts;
  Table<ResourceDesc> resource_descs;
  Table<Event> events;
  Table<LoadedModule> modules;
  Table<Kernel> kernels;
  Table<Graph> graphs;
  Table<GraphExec> graph_execs;
  Table<MemPool> pools;
  Table<UserObject> user_objects;
  Table<Array> arrays;  // levels of mipmapped ones, too
  Table<MipmappedArray> mipmapped_arrays;
  Images images;
  Table<TextureReference> texture_references;
  Table<SurfaceReference> surface_references;
  VirtualMemory virtual_memory;
  AdviceMap advice;

 private:
  void fork();  // in the child

  std::mutex mutex_;
  std::atomic<bool> initialised_{false};
  bool is_forked_child_ = false;
};

/// What a CUcontext stands for: nothing, a context, or a green context of it.
struct ContextHandle {
  Context* context = nullptr;
  GreenContext* green = nullptr;
  CUcontext handle() const;  // null for none
};

/// Of the calling thread.
ContextHandle& current();
inline Context*& current_context() { return current().context; }
/// What is behind a handle; a destroyed context or green context is never found.
ContextHandle find_context(CUcontext handle);
inline Context* context_of(CUcontext handle) { return find_context(handle).context; }

/// The checks that begin almost every call. On success `*context` is the current one.
[[nodiscard]] CUresult enter(Context** context);
/// The same for calls that are legal with an error pending or without a context.
[[nodiscard]] CUresult enter_without_context();
/// The same for calls that need no context, but fail in one with an error.
[[nodiscard]] CUresult enter_without_error();
/// For what needs no context: the current one, or the primary one of the first device.
[[nodiscard]] Context& any_context();
/// For calls that CUDA calls potentially unsafe during a capture: refuses and invalidates it.
[[nodiscard]] CUresult check_capture_safe(Context& context);

}  // namespace software_gpu
