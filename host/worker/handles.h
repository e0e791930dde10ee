// SPDX-License-Identifier: Apache-2.0
// Guest-chosen handles to the driver's. An unknown, freed or wrong-kind handle is never found.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "freed_point.h"
#include "kvgpu/records.h"
#include "launch_graph.h"
#include "stream_window.h"

namespace kvgpu::worker {

// What calls the driver about a context and is not ordered with its end (other threads than the one
// that ends it) shares the mutex meanwhile. A reader never waits for a writer that waits.
struct Watch {
  std::shared_mutex mutex;
  bool is_over = false;  // the context goes
};

struct Context {
  CUcontext raw = nullptr;
  int device = 0;
  bool is_primary = false;
  // Of a green context, `raw` being what the driver makes of it; and whose streams' memory it uses.
  CUgreenCtx green = nullptr;
  wire::Handle primary_handle = 0;
  CUstream watch_stream = nullptr;  // ours, never used by the guest: asked whether it has faulted
  wire::Handle legacy_handle = 0;   // of its legacy stream
  std::shared_ptr<Watch> watch = std::make_shared<Watch>();
  // The driver may give a new context the address of one that is gone.
  uint64_t serial = next_serial();

  static uint64_t next_serial() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }
  // Calls `use` unless the context goes, which then waits for it.
  template <typename Use>
  void while_there(Use use) const {
    const std::shared_lock lock(watch->mutex);
    if (!watch->is_over) use();
  }
};

struct Stream : std::enable_shared_from_this<Stream> {
  std::atomic<CUstream> raw{nullptr};  // null: its creation has failed (Session::enter())
  std::shared_ptr<Context> context;
  wire::Handle context_handle;
  uint64_t* progress = nullptr;  // where the GPU writes, in session memory
  unsigned flags = 0;
  int priority = 0;
  bool is_blocking = false;         // it and the legacy stream wait for each other
  bool captures_to_graph = false;   // of the guest; written by begin and end
  bool has_attributes = false;      // of the guest's choosing
  std::atomic<uint64_t> marked{0};  // release by add_mark(), acquire by the watcher
  StreamWindow window;              // of who executes the stream's records
  FreedPoint freed;                 // likewise
  RunGraph run_graph;               // likewise
  LoneGraphs lone_graphs;           // likewise
  size_t lane = 0;                  // which its last record went to (lanes.h); reader only
  uint64_t lane_seq = 0;

  bool is_legacy() const { return raw == CU_STREAM_LEGACY; }
  void forget_launches() {
    run_graph.forget();
    lone_graphs.forget();
  }
  // Its context is current.
  void close_graphs(const DriverTable& driver) {
    run_graph.close(driver);
    lone_graphs.close(driver);
  }
  // The context that keeps what the stream allocates.
  wire::Handle memory_handle() const {
    return context->green == nullptr ? context_handle : context->primary_handle;
  }
};

template <typename T>
constexpr wire::Kind kind_of() {
  using enum wire::Kind;
  if constexpr (std::is_same_v<T, CUevent>) return EVENT;
  if constexpr (std::is_same_v<T, CUmodule> || std::is_same_v<T, CUlibrary>) return MODULE;
  if constexpr (std::is_same_v<T, CUfunction> || std::is_same_v<T, CUkernel>) return FUNCTION;
  if constexpr (std::is_same_v<T, CUgraph>) return GRAPH;
  if constexpr (std::is_same_v<T, CUgraphExec>) return GRAPH_EXEC;
  if constexpr (std::is_same_v<T, CUmemoryPool>) return MEM_POOL;
  if constexpr (std::is_same_v<T, CUgraphNode>) return GRAPH_NODE;
  if constexpr (std::is_same_v<T, CUuserObject>) return USER_OBJECT;
  if constexpr (std::is_same_v<T, CUarray> || std::is_same_v<T, CUmipmappedArray>) return ARRAY;
  if constexpr (std::is_same_v<T, CUtexref> || std::is_same_v<T, CUsurfref>) return REFERENCE;
}

// Modules and libraries share a kind, and so do functions and kernels, arrays with and without
// levels, textures and surfaces; the driver must not get one for the other.
enum class RawType : uint8_t { PLAIN, LIBRARY, KERNEL, MIPMAPPED, SURFACE };
template <typename T>
constexpr RawType raw_type_of() {
  if constexpr (std::is_same_v<T, CUlibrary>) return RawType::LIBRARY;
  if constexpr (std::is_same_v<T, CUkernel>) return RawType::KERNEL;
  if constexpr (std::is_same_v<T, CUmipmappedArray>) return RawType::MIPMAPPED;
  if constexpr (std::is_same_v<T, CUsurfref>) return RawType::SURFACE;
  return RawType::PLAIN;
}

class HandleTable {
 public:
  template <typename T>
  [[nodiscard]] bool get(wire::Handle handle, T* to) const {
    if (wire::handle_kind(handle) != kind_of<T>()) return false;
    const std::shared_lock lock(mutex_);
    const auto found = raw_.find(handle);
    if (found == raw_.end()) return false;
    // CUDA 13.0 cuda.h: a CUkernel may be launched, and asked for its occupancy, in a CUfunction's
    // place.
    const bool fits = found->second.type == raw_type_of<T>() ||
                      (std::is_same_v<T, CUfunction> && found->second.type == RawType::KERNEL);
    if (!fits) return false;
    *to = static_cast<T>(found->second.raw);
    return true;
  }
  [[nodiscard]] std::shared_ptr<Stream> stream(wire::Handle handle) const {
    return find(streams_, handle);
  }
  // A green one, too. What visits or lists contexts passes over those: they are part of another.
  [[nodiscard]] std::shared_ptr<Context> context(wire::Handle handle) const {
    const auto found = find(contexts_, handle);
    return found != nullptr ? found : find(green_contexts_, handle);
  }
  [[nodiscard]] std::vector<wire::Handle> green_contexts_of(wire::Handle primary) const {
    std::vector<wire::Handle> found;
    const std::shared_lock lock(mutex_);
    for (const auto& [handle, context] : green_contexts_) {
      if (context->primary_handle == primary) found.push_back(handle);
    }
    return found;
  }

  // False: the handle is malformed or in use, a breach of the protocol. `owner`: what takes it
  // along when it goes (a context, a module), 0: nothing. `keeps` lives as long as the handle.
  template <typename T>
  [[nodiscard]] bool add(wire::Handle handle, T raw, wire::Handle owner,
                         std::shared_ptr<const void> keeps = nullptr) {
    if (!wire::handle_tagged(handle) || wire::handle_kind(handle) != kind_of<T>()) return false;
    const std::unique_lock lock(mutex_);
    if (raw_.size() >= MAX_HANDLES || raw_.contains(handle)) return false;
    insert_raw(handle, Raw{raw, raw_type_of<T>(), std::move(keeps), owner});
    return true;
  }
  [[nodiscard]] wire::Handle handle_of(CUcontext raw) const {
    const std::shared_lock lock(mutex_);
    for (const auto& [handle, context] : contexts_) {
      if (context->raw == raw) return handle;
    }
    return 0;
  }
  // The other way round; 0: the guest has no such object.
  template <typename T>
  [[nodiscard]] wire::Handle handle_of(T raw) const {
    const std::shared_lock lock(mutex_);
    const auto found = by_raw_.find(raw);
    return found != by_raw_.end() && wire::handle_kind(found->second) == kind_of<T>()
               ? found->second
               : 0;
  }
  [[nodiscard]] wire::Handle owner_of(wire::Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = raw_.find(handle);
    return found == raw_.end() ? 0 : found->second.owner;
  }
  // What add() was given to keep; null: nothing, or there is no such handle.
  [[nodiscard]] std::shared_ptr<const void> kept_with(wire::Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = raw_.find(handle);
    return found == raw_.end() ? nullptr : found->second.keeps;
  }
  // Those of this type that go with the owner.
  template <typename T>
  [[nodiscard]] std::vector<T> owned_by(wire::Handle owner) const {
    std::vector<T> found;
    const std::shared_lock lock(mutex_);
    const auto owned = owned_.find(owner);
    if (owned == owned_.end()) return found;
    for (const wire::Handle handle : owned->second) {
      const auto each = raw_.find(handle);
      if (each == raw_.end() || wire::handle_kind(handle) != kind_of<T>()) continue;
      if (each->second.type == raw_type_of<T>()) found.push_back(static_cast<T>(each->second.raw));
    }
    return found;
  }
  // The handle of a node of this graph, chosen now if it has none; 0: out of handles.
  [[nodiscard]] wire::Handle name_node(CUgraphNode raw, wire::Handle graph);
  [[nodiscard]] std::vector<std::pair<wire::Handle, CUkernel>> kernels() const;
  [[nodiscard]] bool add(wire::Handle handle, std::shared_ptr<Stream> stream) {
    return insert(streams_, handle, wire::Kind::STREAM, std::move(stream));
  }
  [[nodiscard]] bool add(wire::Handle handle, std::shared_ptr<Context> context) {
    auto& table = context->green == nullptr ? contexts_ : green_contexts_;
    return insert(table, handle, wire::Kind::CONTEXT, std::move(context));
  }

  // How often a handle of this kind has gone: while that is the same number, what was found is
  // found again (handle_cache.h).
  [[nodiscard]] uint64_t n_gone(wire::Kind kind) const {
    return n_gone_[static_cast<size_t>(kind)].load(std::memory_order_acquire);
  }

  // And all that it owns.
  void remove(wire::Handle handle) {
    const std::unique_lock lock(mutex_);
    std::vector<wire::Handle> going{handle};
    while (!going.empty()) {
      const wire::Handle each = going.back();
      going.pop_back();
      count_gone(wire::handle_kind(each));
      erase_raw(each);
      streams_.erase(each);
      contexts_.erase(each);
      green_contexts_.erase(each);
      const auto owned = owned_.extract(each);
      if (!owned.empty()) going.insert(going.end(), owned.mapped().begin(), owned.mapped().end());
    }
  }

  // A reset context takes all that was made in it along.
  void remove_streams_of(wire::Handle context) {
    const std::unique_lock lock(mutex_);
    count_gone(wire::Kind::STREAM);
    std::erase_if(streams_,
                  [&](const auto& item) { return item.second->context_handle == context; });
  }

  template <typename Visit>
  void each_context(Visit visit) const {
    const std::shared_lock lock(mutex_);
    for (const auto& [handle, context] : contexts_) visit(*context);
  }
  [[nodiscard]] std::vector<std::shared_ptr<Stream>> streams_of(int device) const {
    std::vector<std::shared_ptr<Stream>> found;
    const std::shared_lock lock(mutex_);
    for (const auto& [handle, stream] : streams_) {
      if (stream->context->device == device) found.push_back(stream);
    }
    return found;
  }
  // For calls to the driver: they may block, and the table's lock must not be held meanwhile.
  [[nodiscard]] std::vector<std::shared_ptr<Context>> contexts() const {
    const std::shared_lock lock(mutex_);
    std::vector<std::shared_ptr<Context>> all;
    for (const auto& [handle, context] : contexts_) all.push_back(context);
    return all;
  }
  template <typename Visit>
  void each_stream(Visit visit) const {
    const std::shared_lock lock(mutex_);
    for (const auto& [handle, stream] : streams_) visit(*stream);
  }

 private:
  static constexpr size_t MAX_HANDLES = 1 << 20;

  template <typename Map>
  typename Map::mapped_type find(const Map& map, wire::Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = map.find(handle);
    return found == map.end() ? nullptr : found->second;
  }
  template <typename Map>
  bool insert(Map& map, wire::Handle handle, wire::Kind kind, typename Map::mapped_type object) {
    if (!wire::handle_tagged(handle) || wire::handle_kind(handle) != kind) return false;
    const std::unique_lock lock(mutex_);
    return map.size() < MAX_HANDLES && map.emplace(handle, std::move(object)).second;
  }

  struct Raw {
    void* raw;
    RawType type;
    std::shared_ptr<const void> keeps;
    wire::Handle owner;
  };
  // These hold the lock.
  void count_gone(wire::Kind kind) {
    n_gone_[static_cast<size_t>(kind)].fetch_add(1, std::memory_order_release);
  }
  void insert_raw(wire::Handle handle, Raw object) {
    if (object.owner != 0) owned_[object.owner].insert(handle);
    by_raw_[object.raw] = handle;
    raw_.emplace(handle, std::move(object));
  }
  void erase_raw(wire::Handle handle) {
    const auto gone = raw_.extract(handle);
    if (gone.empty()) return;
    const auto named = by_raw_.find(gone.mapped().raw);
    if (named != by_raw_.end() && named->second == handle) by_raw_.erase(named);
    const auto owned = owned_.find(gone.mapped().owner);
    if (owned == owned_.end()) return;  // no owner, or it goes itself
    owned->second.erase(handle);
    if (owned->second.empty()) owned_.erase(owned);
  }

  mutable std::shared_mutex mutex_;
  // By kind. Release under the lock, acquire by who has found something before.
  std::array<std::atomic<uint64_t>, 16> n_gone_{};
  std::unordered_map<const void*, wire::Handle> by_raw_;
  uint64_t n_named_nodes_ = 0;
  std::unordered_map<wire::Handle, Raw> raw_;
  std::unordered_map<wire::Handle, std::unordered_set<wire::Handle>> owned_;
  std::unordered_map<wire::Handle, std::shared_ptr<Stream>> streams_;
  std::unordered_map<wire::Handle, std::shared_ptr<Context>> contexts_, green_contexts_;
};

}  // namespace kvgpu::worker
