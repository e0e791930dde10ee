// SPDX-License-Identifier: Apache-2.0
// Guest-chosen handles to the driver's. An unknown, freed or wrong-kind handle is never found.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>

#include "kvgpu/records.h"

namespace kvgpu::worker {

struct Context {
  CUcontext raw;
  int device;
  CUstream watch_stream;  // ours, never used by the guest: asked whether the context has faulted
};

struct Stream {
  CUstream raw;
  std::shared_ptr<Context> context;
  wire::Handle context_handle;
  uint64_t* progress;  // where the GPU writes, in session memory
  std::atomic<uint64_t> marked{0};
};

template <typename T>
constexpr wire::Kind kind_of() {
  using enum wire::Kind;
  if constexpr (std::is_same_v<T, CUevent>) return EVENT;
  if constexpr (std::is_same_v<T, CUmodule> || std::is_same_v<T, CUlibrary>) return MODULE;
  if constexpr (std::is_same_v<T, CUfunction> || std::is_same_v<T, CUkernel>) return FUNCTION;
  if constexpr (std::is_same_v<T, CUgraph>) return GRAPH;
  if constexpr (std::is_same_v<T, CUgraphExec>) return GRAPH_EXEC;
}

class HandleTable {
 public:
  template <typename T>
  [[nodiscard]] bool get(wire::Handle handle, T* to) const {
    if (wire::handle_kind(handle) != kind_of<T>()) return false;
    const std::shared_lock lock(mutex_);
    const auto found = raw_.find(handle);
    if (found == raw_.end()) return false;
    *to = static_cast<T>(found->second);
    return true;
  }
  [[nodiscard]] std::shared_ptr<Stream> stream(wire::Handle handle) const {
    return find(streams_, handle);
  }
  [[nodiscard]] std::shared_ptr<Context> context(wire::Handle handle) const {
    return find(contexts_, handle);
  }

  // False: the handle is malformed or in use, a breach of the protocol.
  template <typename T>
  [[nodiscard]] bool add(wire::Handle handle, T raw) {
    if (!wire::handle_tagged(handle) || wire::handle_kind(handle) != kind_of<T>()) return false;
    const std::unique_lock lock(mutex_);
    return raw_.size() < MAX_HANDLES && raw_.emplace(handle, raw).second;
  }
  [[nodiscard]] bool add(wire::Handle handle, std::shared_ptr<Stream> stream) {
    return insert(streams_, handle, wire::Kind::STREAM, std::move(stream));
  }
  [[nodiscard]] bool add(wire::Handle handle, std::shared_ptr<Context> context) {
    return insert(contexts_, handle, wire::Kind::CONTEXT, std::move(context));
  }

  void remove(wire::Handle handle) {
    const std::unique_lock lock(mutex_);
    raw_.erase(handle);
    streams_.erase(handle);
    contexts_.erase(handle);
  }

  // A reset context takes all that was made in it along.
  void remove_streams_of(wire::Handle context) {
    const std::unique_lock lock(mutex_);
    std::erase_if(streams_,
                  [&](const auto& item) { return item.second->context_handle == context; });
  }

  template <typename Visit>
  void each_context(Visit visit) const {
    const std::shared_lock lock(mutex_);
    for (const auto& [handle, context] : contexts_) visit(*context);
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

  mutable std::shared_mutex mutex_;
  std::unordered_map<wire::Handle, void*> raw_;
  std::unordered_map<wire::Handle, std::shared_ptr<Stream>> streams_;
  std::unordered_map<wire::Handle, std::shared_ptr<Context>> contexts_;
};

}  // namespace kvgpu::worker
