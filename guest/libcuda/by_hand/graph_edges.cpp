// SPDX-License-Identifier: Apache-2.0
// Nodes and edges: asked for, added, removed.
#include <algorithm>
#include <cstring>

#include "generated/api.gen.h"
#include "graphs.h"

namespace kvgpu::guest {

namespace {

using wire::GraphEdge;
using wire::GraphListOf;

CUresult list(wire::Handle object, GraphListOf what, std::vector<GraphEdge>* edges) {
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  struct {
    wire::GraphListed head;
    GraphEdge list[wire::MAX_GRAPH_EDGES];
  } page;
  edges->clear();
  do {
    const wire::GraphList body{call.context(), object, static_cast<uint32_t>(what), 0,
                               edges->size()};
    if (const CUresult bad = call.sync(wire::Op::GRAPH_LIST, body, &page)) return bad;
    const GraphEdge* const first = page.list;
    edges->insert(edges->end(), first, first + std::min(page.head.n, wire::MAX_GRAPH_EDGES));
  } while (page.head.n != 0 && edges->size() < page.head.n_all);
  return CUDA_SUCCESS;
}

struct Out {
  CUgraphNode* from;
  CUgraphNode* to;
  CUgraphEdgeData* data;
  size_t* n;
};

// CUDA 13.0 cuda.h: up to *n entries; those beyond what there is become null.
CUresult give(wire::Handle object, GraphListOf what, const Out& out) {
  if (out.n == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // As driver 580: an array without room is no question for the count.
  const bool has_array = out.from != nullptr || out.to != nullptr || out.data != nullptr;
  if (has_array && *out.n == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphEdge> edges;
  if (const CUresult bad = list(object, what, &edges)) return bad;
  if (!has_array) {
    *out.n = edges.size();
    return CUDA_SUCCESS;
  }
  const size_t n = std::min(*out.n, edges.size());
  constexpr uint8_t PLAIN[sizeof(CUgraphEdgeData)] = {};
  for (size_t i = 0; i < n && out.data == nullptr; ++i) {
    if (std::memcmp(edges[i].data, PLAIN, sizeof PLAIN) != 0) return CUDA_ERROR_LOSSY_QUERY;
  }
  for (size_t i = 0; i < *out.n; ++i) {
    const GraphEdge edge = i < n ? edges[i] : GraphEdge{};
    if (out.from != nullptr) out.from[i] = from_wire<CUgraphNode>(edge.from);
    if (out.to != nullptr) out.to[i] = from_wire<CUgraphNode>(edge.to);
    if (out.data != nullptr) std::memcpy(&out.data[i], edge.data, sizeof edge.data);
  }
  *out.n = n;
  return CUDA_SUCCESS;
}

CUresult give_of_graph(CUgraph graph, GraphListOf what, const Out& out) {
  if (find(graph) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return give(to_wire(graph), what, out);
}

CUresult give_of_node(CUgraphNode node, GraphListOf what, const Out& out) {
  if (!is_live(wire::Kind::GRAPH_NODE, node)) return CUDA_ERROR_INVALID_VALUE;
  return give(to_wire(node), what, out);
}

CUresult change(wire::Op op, CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                const CUgraphEdgeData* data, size_t n) {
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Graph* const graph = find(handle);
  if (graph == nullptr || (n != 0 && (from == nullptr || to == nullptr))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t at = 0; at < n; at += wire::MAX_GRAPH_EDGES) {
    std::vector<GraphEdge> edges(std::min<size_t>(n - at, wire::MAX_GRAPH_EDGES));
    for (size_t i = 0; i < edges.size(); ++i) {
      edges[i] = {to_wire(from[at + i]), to_wire(to[at + i]), {}};
      if (data != nullptr) std::memcpy(edges[i].data, &data[at + i], sizeof edges[i].data);
    }
    const wire::GraphEdges body{call.context(), graph->handle, edges.size()};
    const Part rest{edges.data(), static_cast<uint32_t>(edges.size() * sizeof edges[0])};
    if (const CUresult bad = call.sync(op, body, rest)) return bad;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult graph_get_nodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  if (nodes != nullptr) {
    return give_of_graph(hGraph, GraphListOf::NODES, {nodes, nullptr, nullptr, numNodes});
  }
  if (numNodes == nullptr || find(hGraph) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  wire::NodeCount out;
  const CUresult result =
      call.sync(wire::Op::cuGraphGetNodes, wire::GraphRef{call.context(), to_wire(hGraph)}, &out);
  if (result == CUDA_SUCCESS) *numNodes = out.n;
  return result;
}
CUresult graph_get_root_nodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
  return give_of_graph(hGraph, GraphListOf::ROOTS, {rootNodes, nullptr, nullptr, numRootNodes});
}
CUresult graph_get_edges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, size_t* numEdges) {
  return graph_get_edges_v2(hGraph, from, to, nullptr, numEdges);
}
CUresult graph_get_edges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* edgeData, size_t* numEdges) {
  if ((from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return give_of_graph(hGraph, GraphListOf::EDGES, {from, to, edgeData, numEdges});
}
CUresult graph_node_get_dependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                     size_t* numDependencies) {
  return graph_node_get_dependencies_v2(hNode, dependencies, nullptr, numDependencies);
}
CUresult graph_node_get_dependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                        CUgraphEdgeData* edgeData, size_t* numDependencies) {
  // CUDA 13.0 cuda.h. Driver 580 does not always refuse it of dependent nodes.
  if (dependencies == nullptr && edgeData != nullptr) return CUDA_ERROR_INVALID_VALUE;
  return give_of_node(hNode, GraphListOf::DEPENDENCIES,
                      {dependencies, nullptr, edgeData, numDependencies});
}
CUresult graph_node_get_dependent_nodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                        size_t* numDependentNodes) {
  return graph_node_get_dependent_nodes_v2(hNode, dependentNodes, nullptr, numDependentNodes);
}
CUresult graph_node_get_dependent_nodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                           CUgraphEdgeData* edgeData, size_t* numDependentNodes) {
  return give_of_node(hNode, GraphListOf::DEPENDENTS,
                      {dependentNodes, nullptr, edgeData, numDependentNodes});
}

CUresult graph_add_dependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t numDependencies) {
  return graph_add_dependencies_v2(hGraph, from, to, nullptr, numDependencies);
}
CUresult graph_add_dependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edgeData, size_t numDependencies) {
  return change(wire::Op::cuGraphAddDependencies_v2, hGraph, from, to, edgeData, numDependencies);
}
CUresult graph_remove_dependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t numDependencies) {
  return graph_remove_dependencies_v2(hGraph, from, to, nullptr, numDependencies);
}
CUresult graph_remove_dependencies_v2(CUgraph hGraph, const CUgraphNode* from,
                                      const CUgraphNode* to, const CUgraphEdgeData* edgeData,
                                      size_t numDependencies) {
  return change(wire::Op::cuGraphRemoveDependencies_v2, hGraph, from, to, edgeData,
                numDependencies);
}

CUresult graph_node_find_in_clone(CUgraphNode* phNode, CUgraphNode hOriginalNode,
                                  CUgraph hClonedGraph) {
  if (phNode == nullptr || find(hClonedGraph) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  const wire::FindInClone body{call.context(), to_wire(hOriginalNode), to_wire(hClonedGraph)};
  wire::GraphNodeNamed out;
  const CUresult result = call.sync(wire::Op::cuGraphNodeFindInClone, body, &out);
  if (result == CUDA_SUCCESS) *phNode = from_wire<CUgraphNode>(out.node);
  return result;
}

}  // namespace kvgpu::guest
