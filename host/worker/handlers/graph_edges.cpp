// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "graph_nodes.h"

namespace kvgpu::worker {

bool Edges::are_plain() const {
  constexpr CUgraphEdgeData PLAIN{};
  for (const CUgraphEdgeData& each : data) {
    if (std::memcmp(&each, &PLAIN, sizeof each) != 0) return false;
  }
  return true;
}

CUresult read_edges(Session& session, const Task& task, size_t head_bytes, uint64_t n,
                    bool two_ends, Edges* edges) {
  const auto rest = task.body.subspan(head_bytes);
  if (n > wire::MAX_GRAPH_EDGES || rest.size() < n * sizeof(wire::GraphEdge)) {
    session.violation(task);
  }
  for (uint64_t i = 0; i < n; ++i) {
    wire::GraphEdge edge;
    std::memcpy(&edge, rest.data() + i * sizeof edge, sizeof edge);
    CUgraphNode from, to = nullptr;
    if (!session.handles.get(edge.from, &from)) return CUDA_ERROR_INVALID_VALUE;
    if (two_ends && !session.handles.get(edge.to, &to)) return CUDA_ERROR_INVALID_VALUE;
    edges->from.push_back(from);
    edges->to.push_back(to);
    static_assert(sizeof(CUgraphEdgeData) == sizeof edge.data);
    std::memcpy(&edges->data.emplace_back(), edge.data, sizeof edge.data);
  }
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::worker
