// SPDX-License-Identifier: Apache-2.0
#include "handles.h"

namespace kvgpu::worker {

wire::Handle HandleTable::name_node(CUgraphNode raw, wire::Handle graph) {
  const std::unique_lock lock(mutex_);
  // The driver may give a new node the address of one that went with its graph.
  const auto known = by_raw_.find(raw);
  if (known != by_raw_.end()) {
    const auto node = raw_.find(known->second);
    if (node != raw_.end() && node->second.owner == graph) return known->second;
  }
  if (raw_.size() >= MAX_HANDLES) return 0;
  constexpr uint64_t N_INDICES = wire::MAX_HANDLE_INDEX - 1;
  wire::Handle handle;
  do {
    const uint64_t n = n_named_nodes_++;
    handle = wire::make_handle(wire::Kind::GRAPH_NODE, 0, static_cast<uint32_t>(1 + n % N_INDICES),
                               static_cast<uint32_t>(n / N_INDICES));
  } while (raw_.contains(handle));
  insert_raw(handle, Raw{raw, RawType::PLAIN, nullptr, graph});
  return handle;
}

std::vector<std::pair<wire::Handle, CUkernel>> HandleTable::kernels() const {
  const std::shared_lock lock(mutex_);
  std::vector<std::pair<wire::Handle, CUkernel>> found;
  for (const auto& [handle, object] : raw_) {
    if (object.type == RawType::KERNEL) {
      found.emplace_back(handle, static_cast<CUkernel>(object.raw));
    }
  }
  return found;
}

}  // namespace kvgpu::worker
