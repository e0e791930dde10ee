// SPDX-License-Identifier: Apache-2.0
// Graphs: their life, their nodes and edges.
#include <algorithm>
#include <cstring>

#include "api.h"

using namespace software_gpu;

namespace {

CUgraphNode handle_of(const GraphNode* node) {
  return reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(node));
}

/// The graphs inside the node's graphs are no handles any more, either.
void forget_children(const GraphNode& node) {
  for (const auto& child : graphs_in(node)) {
    static_cast<void>(Driver::instance().graphs.take(child.get()));
    for (const auto& inner : child->nodes) forget_children(*inner);
  }
}

struct Edge {
  const GraphNode* from;
  const GraphNode* to;
  CUgraphEdgeData data{};
};

bool is_plain(const CUgraphEdgeData& data) {
  constexpr CUgraphEdgeData PLAIN{};
  return memcmp(&data, &PLAIN, sizeof PLAIN) == 0;
}

/// CUDA's way to give out a list.
CUresult give(const std::vector<Edge>& edges, CUgraphNode* from, CUgraphNode* to,
              CUgraphEdgeData* data, size_t* n) {
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  const bool wanted = from || to || data;
  if (wanted && *n == 0) return CUDA_ERROR_INVALID_VALUE;  // as driver 580
  if (wanted && !data &&
      !std::ranges::all_of(edges, [](const Edge& e) { return is_plain(e.data); }))
    return CUDA_ERROR_LOSSY_QUERY;
  for (size_t i = 0; wanted && i < *n; ++i) {
    if (from) from[i] = i < edges.size() ? handle_of(edges[i].from) : nullptr;
    if (to) to[i] = i < edges.size() ? handle_of(edges[i].to) : nullptr;
    if (data) data[i] = i < edges.size() ? edges[i].data : CUgraphEdgeData{};
  }
  *n = wanted ? std::min(*n, edges.size()) : edges.size();
  return CUDA_SUCCESS;
}

}  // namespace

/// CUDA 13.0, CUgraphEdgeData and CUgraphDependencyType.
bool software_gpu::is_edge_valid(const CUgraphEdgeData& data, CUgraphNodeType from,
                                 CUgraphNodeType to) {
  const auto is_zero = [](unsigned char byte) { return byte == 0; };
  if (data.to_port != 0 || !std::ranges::all_of(data.reserved, is_zero)) return false;
  if (data.from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER) return false;
  if (data.from_port != 0 && from != CU_GRAPH_NODE_TYPE_KERNEL) return false;
  if (data.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT)
    return data.from_port != CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  return data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && data.from_port != 0 &&
         to == CU_GRAPH_NODE_TYPE_KERNEL;
}

SOFTWARE_GPU_API cuGraphCreate(CUgraph* handle, unsigned flags) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  auto graph = std::make_shared<Graph>();
  *handle = reinterpret_cast<CUgraph>(graph.get());
  Driver::instance().graphs.add(std::move(graph));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphClone(CUgraph* handle, CUgraph original) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(original);
  if (!handle || !graph) return CUDA_ERROR_INVALID_VALUE;
  if (!can_be_copied(*graph) || graph->parent) return CUDA_ERROR_NOT_SUPPORTED;
  auto clone = graph->clone();
  *handle = reinterpret_cast<CUgraph>(clone.get());
  Driver::instance().graphs.add(std::move(clone));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode original, CUgraph clone) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(clone);
  if (!found || !original || !graph) return CUDA_ERROR_INVALID_VALUE;
  const GraphNode* const node = graph->clone_of(node_of(original));
  *found = handle_of(node);
  return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFTWARE_GPU_API cuGraphDestroy(CUgraph handle) {
  RETURN_IF_FAILED(enter_without_context());
  const auto found = Driver::instance().graphs.find(handle);
  if (!found || found->is_captured || found->parent) return CUDA_ERROR_INVALID_VALUE;
  const auto graph = Driver::instance().graphs.take(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& node : graph->nodes) forget_children(*node);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphDestroyNode(CUgraphNode handle) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  const GraphNode* const node = node_of(handle);
  if (node->graph->is_captured) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory(*node->graph)) return CUDA_ERROR_NOT_SUPPORTED;
  forget_children(*node);
  node->graph->remove(node);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle || !type) return CUDA_ERROR_INVALID_VALUE;
  *type = node_of(handle)->operation.type;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* graph) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle || !graph || node_of(handle)->operation.type != CU_GRAPH_NODE_TYPE_GRAPH)
    return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Graph>& child = node_of(handle)->operation.params->child;
  Driver::instance().graphs.add(child);
  *graph = reinterpret_cast<CUgraph>(child.get());
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* n_nodes) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> all;
  for (const auto& node : graph->nodes) all.push_back({node.get(), nullptr});
  return give(all, nodes, nullptr, nullptr, n_nodes);
}

SOFTWARE_GPU_API cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* n_nodes) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> roots;
  for (const auto& node : graph->nodes)
    if (node->after.empty()) roots.push_back({node.get(), nullptr});
  return give(roots, nodes, nullptr, nullptr, n_nodes);
}

SOFTWARE_GPU_API cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                                    CUgraphEdgeData* data, size_t* n_edges) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> edges;
  for (const auto& node : graph->nodes)
    for (const GraphNode* before : node->after)
      edges.push_back({before, node.get(), node->edge_from(before)});
  return give(edges, from, to, data, n_edges);
}

SOFTWARE_GPU_API cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes,
                                               CUgraphEdgeData* data, size_t* n_nodes) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> edges;
  for (const GraphNode* before : node_of(handle)->after)
    edges.push_back({before, nullptr, node_of(handle)->edge_from(before)});
  return give(edges, nodes, nullptr, data, n_nodes);
}

SOFTWARE_GPU_API cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* nodes,
                                                 CUgraphEdgeData* data, size_t* n_nodes) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> edges;
  for (const auto& node : node_of(handle)->graph->nodes)
    if (std::ranges::find(node->after, node_of(handle)) != node->after.end())
      edges.push_back({node.get(), nullptr, node->edge_from(node_of(handle))});
  return give(edges, nodes, nullptr, data, n_nodes);
}

SOFTWARE_GPU_API cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode* from,
                                           const CUgraphNode* to, const CUgraphEdgeData* data,
                                           size_t n) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(handle);
  if (!graph || (n != 0 && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < n; ++i) {
    GraphNode* const before = node_of(from[i]);
    GraphNode* const after = node_of(to[i]);
    if (!before || !after || before == after || before->graph != graph.get() ||
        after->graph != graph.get() ||
        std::ranges::find(after->after, before) != after->after.end() ||
        (data && !is_edge_valid(data[i], before->operation.type, after->operation.type)))
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < n; ++i) {
    node_of(to[i])->after.push_back(node_of(from[i]));
    if (data && !is_plain(data[i])) node_of(to[i])->edges[node_of(from[i])] = data[i];
  }
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphRemoveDependencies_v2(CUgraph handle, const CUgraphNode* from,
                                              const CUgraphNode* to, const CUgraphEdgeData*,
                                              size_t n) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(handle);
  if (!graph || (n != 0 && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; i < n; ++i) {  // whatever data they have, as on driver 580
    const std::vector<GraphNode*>& before = node_of(to[i])->after;
    if (std::ranges::find(before, node_of(from[i])) == before.end())
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < n; ++i) {
    std::erase(node_of(to[i])->after, node_of(from[i]));
    node_of(to[i])->edges.erase(node_of(from[i]));
  }
  return CUDA_SUCCESS;
}
