// SPDX-License-Identifier: Apache-2.0
// What a CUDA handle stands for in the guest, and the tables that find it. A handle is an id
// (PROTOCOL.md §3.2), never a pointer; a freed one is never found again. Objects are never given
// back to the allocator: a lookup needs no lock.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda_api.h"
#include "function_memo.h"
#include "kvgpu/calls.h"
#include "kvgpu/image_calls.h"
#include "kvgpu/module_calls.h"
#include "kvgpu/records.h"

namespace kvgpu::guest {

struct Capture;
struct Stream;

struct Context {
  wire::Handle handle = 0;
  int device = 0;
  uint64_t id = 0;  // cuCtxGetId
  bool is_primary = false;
  std::atomic<bool> active{false};  // release by retain and reset, acquire by each call
  // Of cuCtxCreate, and gone: the object stays, see find(). seq_cst on both sides.
  std::atomic<bool> destroyed{false};
  unsigned flags = 0;
  int retain_count = 0;         // of a primary context
  std::atomic<int> n_green{0};  // of these, those of green contexts that live
  int attach_count = 0;         // of the others
  wire::ContextRetained info{};
  // How often that was changed by which functions answer (FunctionMemo), or the context ended.
  std::atomic<uint64_t> n_changes{0};
  // Of a green context, which has streams of its own; all else is the primary context's.
  Context* primary = nullptr;
  std::atomic<bool> is_converted{false};  // its handle is a context's, too
  Stream* legacy = nullptr;
  // The stream that moves pages of managed memory: release by prepare(), acquire by mover_of().
  std::atomic<wire::Handle> mover{0};
  std::mutex mutex;              // the primary context's state and the lists below
  std::vector<Stream*> streams;  // those of green contexts stand with their primary context
  // Of streams that were destroyed with work in flight: a synchronisation waits for it all the
  // same.
  struct Leaving {
    uint32_t word;
    uint64_t last_number;
    bool is_blocking;
    const Context* owner;
  };
  std::vector<Leaving> leaving;
  // Hidden streams of threads that are gone. Their lock is never held while anybody waits: a thread
  // that ends takes it.
  std::mutex idle_mutex;
  std::vector<wire::Handle> idle_thread_streams;
};

inline Context& home_of(Context& context) {
  return context.primary == nullptr ? context : *context.primary;
}

enum class Due { OUTPUT, MEMORY };  // driver_waits.h

struct Stream {
  wire::Handle handle = 0;
  Context* context = nullptr;
  Context* owner = nullptr;  // the same, or a green context of it
  uint64_t id = 0;
  unsigned flags = 0;
  std::atomic<int> priority{0};
  bool is_mover = false;  // a context's `mover`
  uint32_t word = 0;
  std::mutex mark_mutex;  // numbers enter the ring in their order
  // The last number asked for: release by the call that asks, acquire by queries.
  std::atomic<uint64_t> issued{0};
  // Work since that number: release by enqueues, after their record is in the ring; acquire by
  // mark_stream().
  std::atomic<bool> dirty{false};
  bool is_due[2]{};                          // by Due: DriverWaits has it in a list, and its lock
  std::atomic<bool> has_taken_freed{false};  // freed_memory.h; till launch.cpp has seen to it
  std::atomic<Capture*> capture{nullptr};    // release by begin and end, acquire by enqueues
  // What cuStreamGetCaptureInfo has given out.
  std::vector<CUgraphNode> dependencies;
  std::vector<CUgraphEdgeData> dependency_data;

  bool is_legacy() const { return owner->legacy == this; }
};

struct Event {
  wire::Handle handle = 0;
  Context* context = nullptr;
  unsigned flags = 0;
  std::mutex mutex;
  bool recorded = false;
  // The last record was a graph's, or a whole context's: the driver is asked.
  bool by_graph = false;
  uint32_t word = 0;
  uint64_t number = 0;
  uint64_t capture_id = 0;  // 0: the last record was an ordinary one

  // Another process may record it and wait for it: only the driver knows of that, and no call about
  // it may be on its way still when the program goes on.
  bool is_shared() const { return (flags & CU_EVENT_INTERPROCESS) != 0; }
  void share(unsigned its_flags) {
    flags = its_flags;
    recorded = by_graph = true;
  }
};

struct Module {  // of cuModuleLoad* and cuLibraryLoad*
  wire::Handle handle = 0;
  bool is_library = false;
  bool prints = false;
  Context* context = nullptr;  // of a module; a library has none
  std::mutex mutex;
  std::map<std::string, wire::Handle> functions;
  wire::Handle module_of_library = 0;
  std::map<std::string, wire::Handle> textures, surfaces;  // references
};

struct Function {
  wire::Handle handle = 0;
  wire::Handle module = 0;
  std::string name;
  std::mutex mutex;  // while it is described
  // What follows is known: release by describe(), acquire by need_description().
  std::atomic<bool> described{false};
  bool prints = false;  // may do so; before, its module's
  std::array<std::atomic<int32_t>, wire::N_FUNCTION_ATTRIBUTES> attributes{};
  std::vector<wire::ParamInfo> params;
  uint32_t param_bytes = 0;
  FunctionMemo memo;
  struct Cuda3 {  // what the launch interface of CUDA 3 has set
    unsigned block[3] = {1, 1, 1};
    unsigned shared_bytes = 0;
    unsigned param_bytes = 0;
    alignas(16) char params[4096] = {};  // as many as that interface could pass
  } cuda3;
};

// As CUDA has it, a graph and what hangs on it is used by one thread at a time.
struct Graph {
  wire::Handle handle = 0;
  wire::Handle parent = 0;  // of the graph inside a child graph node
  // The outermost graph holds these for all that are inside it. They may be more than its nodes
  // name today.
  std::vector<uint64_t> functions;  // that its host nodes run; it keeps them
  std::set<wire::Handle> events;    // that its nodes wait for or record
  std::set<wire::Handle> recorded;  // of these
  std::vector<wire::Handle> children;
  bool has_memory = false;  // nodes that allocate or free: the driver may refuse a launch
  bool prints = false;      // or a kernel of it may
  struct KernelParams {     // what cuGraphKernelNodeGetParams has given out
    std::vector<std::byte> bytes;
    std::vector<void*> pointers;
  };
  std::map<wire::Handle, KernelParams> kernel_params;                  // by node
  std::map<wire::Handle, std::vector<CUmemAccessDesc>> memory_access;  // likewise
  std::map<wire::Handle, std::vector<CUgraph>> bodies;  // of conditional nodes, for the program
  std::map<wire::Handle, std::vector<CUstreamBatchMemOpParams>> batches;
};

// The one that holds what `graph` and all around it keep alive.
Graph& outermost(Graph& graph);

struct GraphExec {
  wire::Handle handle = 0;
  uint64_t device_handle = 0;  // what the program calls it, where kernels may launch it
  Context* context = nullptr;
  uint64_t flags = 0;
  struct HostNode {
    wire::Handle node;  // 0: not known
    uint64_t function;
  };
  std::vector<HostNode> host_nodes;  // exactly those that a launch runs; it keeps the functions
  std::set<wire::Handle> events, recorded;
  bool has_memory = false, prints = false;
};

struct MemPool {
  wire::Handle handle = 0;
  int device = 0;
  unsigned handle_types = 0;  // for which it can be exported
  std::atomic<uint64_t> release_threshold{0};
};

struct UserObject {
  wire::Handle handle = 0;
};

struct Array {  // CUarray and CUmipmappedArray
  wire::Handle handle = 0;
  Context* context = nullptr;
  bool is_mipmapped = false;
  wire::ArrayShape shape{};
  wire::ArrayNeeds needs{};  // of those that are sparse or mapped later
  bool is_part = false;      // a level or a plane
  uint64_t bytes = 0;        // at least; those of a part are the whole's
  std::mutex mutex;
  std::map<unsigned, wire::Handle> parts;  // levels or planes, which go with it
};

struct Reference {  // CUtexref and CUsurfref
  wire::Handle handle = 0;
  Context* context = nullptr;
  bool is_surface = false;
};

struct Link {  // CUlinkState
  wire::Handle handle = 0;
  Context* context = nullptr;
  unsigned n_options = 0;
  std::vector<CUjit_option> options;
  void** values = nullptr;  // of the creator
  std::string cubin;
};

template <typename T>
constexpr wire::Kind kind_of() {
  using enum wire::Kind;
  if constexpr (std::is_same_v<T, Context>) return CONTEXT;
  if constexpr (std::is_same_v<T, Stream>) return STREAM;
  if constexpr (std::is_same_v<T, Event>) return EVENT;
  if constexpr (std::is_same_v<T, Module>) return MODULE;
  if constexpr (std::is_same_v<T, Function>) return FUNCTION;
  if constexpr (std::is_same_v<T, Graph>) return GRAPH;
  if constexpr (std::is_same_v<T, GraphExec>) return GRAPH_EXEC;
  if constexpr (std::is_same_v<T, MemPool>) return MEM_POOL;
  if constexpr (std::is_same_v<T, UserObject>) return USER_OBJECT;
  if constexpr (std::is_same_v<T, Link>) return LINK;
  if constexpr (std::is_same_v<T, Array>) return ARRAY;
  if constexpr (std::is_same_v<T, Reference>) return REFERENCE;
}

template <typename T>
class Table {
 public:
  // Null: out of handles.
  T* create() {
    const std::lock_guard lock(mutex_);
    uint32_t index;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (n_used_ < wire::MAX_HANDLE_INDEX) {
      index = n_used_++;
      auto& chunk = chunks_[index / CHUNK];
      if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Slot[CHUNK]);
    } else {
      return nullptr;
    }
    Slot& slot = slot_at(index);
    slot.object = std::make_unique<T>();
    slot.object->handle = wire::make_handle(kind_of<T>(), 0, index, ++slot.generation);
    slot.handle.store(slot.object->handle, std::memory_order_release);
    return slot.object.get();
  }

  T* find(wire::Handle handle) const {
    const uint32_t index = wire::handle_index(handle);
    if (!wire::handle_tagged(handle) || wire::handle_kind(handle) != kind_of<T>() ||
        index >= wire::MAX_HANDLE_INDEX) {
      return nullptr;
    }
    const Slot* chunk = chunks_[index / CHUNK].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    const Slot& slot = chunk[index % CHUNK];
    return slot.handle.load(std::memory_order_acquire) == handle ? slot.object.get() : nullptr;
  }

  // Whether a handle of ours was an object's, which has ended.
  bool has_ended(wire::Handle handle) const {
    if (!wire::handle_tagged(handle) || wire::handle_kind(handle) != kind_of<T>()) return false;
    const uint32_t index = wire::handle_index(handle);
    const std::lock_guard lock(mutex_);
    return index != 0 && index < n_used_ && find(handle) == nullptr;
  }

  // The handles of all live objects.
  std::vector<wire::Handle> handles() const {
    const std::lock_guard lock(mutex_);
    std::vector<wire::Handle> live;
    for (uint32_t index = 1; index < n_used_; ++index) {
      const wire::Handle handle = slot_at(index).handle.load(std::memory_order_acquire);
      if (handle != 0) live.push_back(handle);
    }
    return live;
  }

  // From now on not found. The object goes when its slot is used again.
  bool remove(wire::Handle handle) {
    const std::lock_guard lock(mutex_);
    if (find(handle) == nullptr) return false;
    const uint32_t index = wire::handle_index(handle);
    slot_at(index).handle.store(0, std::memory_order_release);
    free_.push_front(index);  // the longest unused first
    return true;
  }

 private:
  static constexpr uint32_t CHUNK = 1024;
  struct Slot {
    std::atomic<wire::Handle> handle{0};  // release by make() and remove(), acquire by find()
    uint32_t generation = 0;
    std::unique_ptr<T> object;
  };
  Slot& slot_at(uint32_t index) const {
    return chunks_[index / CHUNK].load(std::memory_order_relaxed)[index % CHUNK];
  }

  mutable std::mutex mutex_;
  // Release by make(), acquire by find().
  std::array<std::atomic<Slot*>, wire::MAX_HANDLE_INDEX / CHUNK> chunks_{};
  std::deque<uint32_t> free_;
  uint32_t n_used_ = 1;  // index 0 stays unused: no handle looks like CU_STREAM_LEGACY
};

// Execs that kernels may launch: the program has the driver's own handles, which are no ids.
class DeviceExecs {
 public:
  void add(uint64_t device_handle, wire::Handle handle);
  void remove(uint64_t device_handle);
  wire::Handle find(uint64_t device_handle) const;  // 0: none

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, wire::Handle> handles_;
};

struct Tables {
  Table<Context> contexts;
  Table<Stream> streams;
  Table<Event> events;
  Table<Module> modules;
  Table<Function> functions;
  Table<Graph> graphs;
  Table<GraphExec> graph_execs;
  Table<MemPool> mem_pools;
  Table<UserObject> user_objects;
  Table<Link> links;
  Table<Array> arrays;
  Table<Reference> references;
  DeviceExecs device_execs;
};
inline Tables& tables() {
  static auto& all =
      *new Tables;  // never destroyed: exit handlers of other libraries still call us
  return all;
}

template <typename CudaHandle>
wire::Handle to_wire(CudaHandle handle) {
  return reinterpret_cast<wire::Handle>(handle);
}
inline wire::Handle to_wire(CUgraphExec handle) {
  const auto number = reinterpret_cast<uint64_t>(handle);
  return wire::handle_tagged(number) ? number : tables().device_execs.find(number);
}
template <typename CudaHandle>
CudaHandle from_wire(wire::Handle handle) {
  return reinterpret_cast<CudaHandle>(handle);
}

// A destroyed context's object stays where it is: threads may still have it current.
inline Context* find_itself(CUcontext h) {
  Context* const context = tables().contexts.find(to_wire(h));
  if (context == nullptr || context->destroyed) return nullptr;
  return context->primary == nullptr || context->is_converted ? context : nullptr;
}
// What memory, kernels and events belong to: for a green context its primary one.
inline Context* find(CUcontext h) {
  Context* const context = find_itself(h);
  return context == nullptr ? nullptr : &home_of(*context);
}
inline Event* find(CUevent h) { return tables().events.find(to_wire(h)); }
inline Module* find(CUmodule h) { return tables().modules.find(to_wire(h)); }
inline Module* find(CUlibrary h) { return tables().modules.find(to_wire(h)); }
inline Function* find(CUfunction h) { return tables().functions.find(to_wire(h)); }
inline Function* find(CUkernel h) { return tables().functions.find(to_wire(h)); }
inline Graph* find(CUgraph h) { return tables().graphs.find(to_wire(h)); }
inline GraphExec* find(CUgraphExec h) { return tables().graph_execs.find(to_wire(h)); }
inline UserObject* find(CUuserObject h) { return tables().user_objects.find(to_wire(h)); }
inline MemPool* find(CUmemoryPool h) { return tables().mem_pools.find(to_wire(h)); }
inline Array* find(CUarray h) {
  Array* const array = tables().arrays.find(to_wire(h));
  return array != nullptr && !array->is_mipmapped ? array : nullptr;
}
inline Array* find(CUmipmappedArray h) {
  Array* const array = tables().arrays.find(to_wire(h));
  return array != nullptr && array->is_mipmapped ? array : nullptr;
}
inline Reference* find(CUtexref h) {
  Reference* const reference = tables().references.find(to_wire(h));
  return reference != nullptr && !reference->is_surface ? reference : nullptr;
}
inline Reference* find(CUsurfref h) {
  Reference* const reference = tables().references.find(to_wire(h));
  return reference != nullptr && reference->is_surface ? reference : nullptr;
}

// As driver 580: the context of an event that was destroyed is taken for gone.
inline CUresult missing(CUevent h) {
  return tables().events.has_ended(to_wire(h)) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                               : CUDA_ERROR_INVALID_HANDLE;
}

template <typename CudaHandle>
bool is_live(wire::Kind, CudaHandle handle) {
  return find(handle) != nullptr;
}
// Which nodes there are the worker knows.
inline bool is_live(wire::Kind kind, CUgraphNode handle) {
  return wire::handle_tagged(to_wire(handle)) && wire::handle_kind(to_wire(handle)) == kind;
}
void forget(wire::Handle handle);

// Parameters and attributes of a kernel that was looked up before there was a context: asked for
// once, when they are needed.
CUresult describe_kernel(Function& function);
inline CUresult need_description(Function& function) {
  return function.described.load(std::memory_order_acquire) ? CUDA_SUCCESS
                                                            : describe_kernel(function);
}

}  // namespace kvgpu::guest
