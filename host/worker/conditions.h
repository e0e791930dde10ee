// SPDX-License-Identifier: Apache-2.0
// The driver's handles of conditional nodes that the guest has been given. A kernel takes one as a
// number, so the guest has the driver's own; what it names when it adds a node must be one of them.
#pragma once

#include <cuda.h>

#include <mutex>
#include <set>
#include <utility>

#include "handles.h"

namespace kvgpu::worker {

class Conditions {
 public:
  void add(CUgraphConditionalHandle condition, wire::Handle graph, const HandleTable& handles) {
    const std::lock_guard lock(mutex_);
    // Those of graphs that are gone go now and then.
    if (known_.size() >= next_sweep_) {
      std::erase_if(known_, [&](const auto& item) { return !is_live(item.second, handles); });
      next_sweep_ = 2 * known_.size() + FIRST_SWEEP;
    }
    known_.emplace(condition, graph);
  }
  // Of any graph: which of them it fits the driver knows.
  [[nodiscard]] bool has(CUgraphConditionalHandle condition, const HandleTable& handles) const {
    const std::lock_guard lock(mutex_);
    for (auto at = known_.lower_bound({condition, 0}); at != known_.end(); ++at) {
      if (at->first != condition) return false;
      if (is_live(at->second, handles)) return true;
    }
    return false;
  }

 private:
  static constexpr size_t FIRST_SWEEP = 1024;

  static bool is_live(wire::Handle graph, const HandleTable& handles) {
    CUgraph raw;
    return handles.get(graph, &raw);
  }
  mutable std::mutex mutex_;
  std::set<std::pair<CUgraphConditionalHandle, wire::Handle>> known_;
  size_t next_sweep_ = FIRST_SWEEP;
};

}  // namespace kvgpu::worker
