// SPDX-License-Identifier: Apache-2.0
// Nodes are added and changed, in graphs and in execs.
#include <algorithm>
#include <cstring>

#include "generated/api.gen.h"
#include "graphs.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

struct Dependencies {
  const CUgraphNode* nodes;
  const CUgraphEdgeData* data;  // null: plain edges
  size_t n;
};

// What is made current for a record about a node: a node is of the context or the green context
// that it is made in. Memory is the primary context's.
wire::Handle context_of(const GraphCall& call, const NodeBody& body) {
  if (body.type() == CU_GRAPH_NODE_TYPE_MEM_ALLOC || call.context() == 0) return call.context();
  const Context* const itself = body.context() == nullptr ? current_itself() : body.context();
  return itself == nullptr ? 0 : itself->handle;
}

CUresult add(CUgraphNode* out, CUgraph handle, const Dependencies& after, NodeBody& body) {
  if (out == nullptr || (after.n != 0 && after.nodes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call(body.context() == nullptr ? nullptr : &home_of(*body.context()));
  if (call.status() != CUDA_SUCCESS) return call.status();
  Graph* const graph = find(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool allocates = body.type() == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  // A primary context that is named only needs not be active.
  Context* const home = body.context() == nullptr ? current_context() : &home_of(*body.context());
  if (allocates && call.context() == 0 && body.context() == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  // What does not fit into the record comes afterwards.
  constexpr size_t MAX_DEPENDENCIES = 256;
  const size_t room_bytes = wire::MAX_RECORD_BYTES - sizeof(wire::Header) -
                            sizeof(wire::AddGraphNode) - body.bytes().len_bytes;
  std::vector<wire::GraphEdge> edges(
      std::min({after.n, MAX_DEPENDENCIES, room_bytes / sizeof(wire::GraphEdge)}));
  for (size_t i = 0; i < edges.size(); ++i) {
    edges[i] = {to_wire(after.nodes[i]), 0, {}};
    if (after.data != nullptr) std::memcpy(edges[i].data, &after.data[i], sizeof edges[i].data);
  }
  const wire::AddGraphNode head{context_of(call, body), graph->handle,
                                static_cast<uint32_t>(body.type()),
                                static_cast<uint32_t>(edges.size())};
  struct {
    wire::GraphNodeNamed node;
    wire::MemAllocated memory;  // of a node that allocates
  } out_values;
  const CUresult result = call.sync(
      wire::Op::cuGraphAddNode_v2, head, &out_values,
      Part{edges.data(), static_cast<uint32_t>(edges.size() * sizeof edges[0])}, body.bytes());
  if (result != CUDA_SUCCESS) return result;
  body.belongs_to(*graph);
  if (allocates) {
    if (const CUresult bad = body.adopt(out_values.memory.dptr, home)) return bad;
  }
  const auto node = from_wire<CUgraphNode>(out_values.node.node);
  body.adopt_bodies(*graph, node);
  for (size_t i = edges.size(); i < after.n; ++i) {
    const CUgraphEdgeData* const data = after.data == nullptr ? nullptr : &after.data[i];
    if (const CUresult bad = graph_add_dependencies_v2(handle, &after.nodes[i], &node, data, 1)) {
      (void)graph_destroy_node(node);
      return bad;
    }
  }
  *out = node;
  return CUDA_SUCCESS;
}

CUresult set(CUgraphNode node, NodeBody& body) {
  const GraphCall call(body.context() == nullptr ? nullptr : &home_of(*body.context()));
  if (call.status() != CUDA_SUCCESS) return call.status();
  const wire::SetGraphNode head{context_of(call, body), 0, to_wire(node),
                                static_cast<uint32_t>(body.type()), 0};
  wire::ChildGraphNamed owner;
  const CUresult result = call.sync(wire::Op::cuGraphNodeSetParams, head, &owner, body.bytes());
  if (result != CUDA_SUCCESS) return result;
  if (Graph* const graph = tables().graphs.find(owner.graph)) {
    graph->kernel_params.erase(to_wire(node));
    body.belongs_to(*graph);
  }
  return CUDA_SUCCESS;
}

CUresult set(CUgraphExec handle, CUgraphNode node, NodeBody& body) {
  const GraphCall call(body.context() == nullptr ? nullptr : &home_of(*body.context()));
  if (call.status() != CUDA_SUCCESS) return call.status();
  GraphExec* const exec = find(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_live(wire::Kind::GRAPH_NODE, node)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = body.may_belong_to(*exec, node)) return bad;
  const wire::SetGraphNode head{context_of(call, body), exec->handle, to_wire(node),
                                static_cast<uint32_t>(body.type()), 0};
  const CUresult result = call.sync(wire::Op::cuGraphExecNodeSetParams, head, body.bytes());
  if (result == CUDA_SUCCESS) body.belongs_to(*exec, node);
  return result;
}

CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
  return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
          p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    nullptr,     nullptr};
}

// The body, or what is wrong with it.
#define FILL(body, call)                                               \
  NodeBody body;                                                       \
  if (const CUresult bad = Session::get().pending_error()) return bad; \
  if (const CUresult bad = (call)) return bad

}  // namespace

// ---- adding

CUresult graph_add_kernel_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                               const CUgraphNode* dependencies, size_t numDependencies,
                               const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILL(body, body.kernel(widened(*nodeParams)));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_kernel_node_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                  const CUgraphNode* dependencies, size_t numDependencies,
                                  const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILL(body, body.kernel(*nodeParams));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_memcpy_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                               const CUgraphNode* dependencies, size_t numDependencies,
                               const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  FILL(body, body.memcpy(copyParams, ctx));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_memset_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                               const CUgraphNode* dependencies, size_t numDependencies,
                               const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
  FILL(body, body.memset(memsetParams, ctx));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_host_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                             const CUgraphNode* dependencies, size_t numDependencies,
                             const CUDA_HOST_NODE_PARAMS* nodeParams) {
  FILL(body, body.host(nodeParams));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_child_graph_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                                    const CUgraphNode* dependencies, size_t numDependencies,
                                    CUgraph childGraph) {
  FILL(body, body.child(childGraph));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_empty_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies) {
  FILL(body, body.empty());
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_event_record_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                                     const CUgraphNode* dependencies, size_t numDependencies,
                                     CUevent event) {
  FILL(body, body.event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_event_wait_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                                   const CUgraphNode* dependencies, size_t numDependencies,
                                   CUevent event) {
  FILL(body, body.event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_node(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return graph_add_node_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}
CUresult graph_add_node_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
                           size_t numDependencies, CUgraphNodeParams* nodeParams) {
  FILL(body, body.any(nodeParams));
  const CUresult result =
      add(phGraphNode, hGraph, {dependencies, dependencyData, numDependencies}, body);
  if (result == CUDA_SUCCESS && body.type() == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    nodeParams->alloc.dptr = body.address();
  }
  return result;
}
CUresult graph_add_batch_mem_op_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                                     const CUgraphNode* dependencies, size_t numDependencies,
                                     const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  FILL(body, body.batch(nodeParams));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}
CUresult graph_add_mem_alloc_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                                  const CUgraphNode* dependencies, size_t numDependencies,
                                  CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  FILL(body, body.alloc(nodeParams));
  const CUresult result = add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
  if (result == CUDA_SUCCESS) nodeParams->dptr = body.address();
  return result;
}
CUresult graph_add_mem_free_node(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 CUdeviceptr dptr) {
  FILL(body, body.free(dptr));
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, body);
}

// ---- changing a graph's

CUresult graph_kernel_node_set_params(CUgraphNode hNode,
                                      const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILL(body, body.kernel(widened(*nodeParams)));
  return set(hNode, body);
}
CUresult graph_kernel_node_set_params_v2(CUgraphNode hNode,
                                         const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILL(body, body.kernel(*nodeParams));
  return set(hNode, body);
}
CUresult graph_memcpy_node_set_params(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
  FILL(body, body.memcpy(nodeParams, nullptr));
  return set(hNode, body);
}
CUresult graph_memset_node_set_params(CUgraphNode hNode,
                                      const CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  FILL(body, body.memset(nodeParams, nullptr));
  return set(hNode, body);
}
CUresult graph_host_node_set_params(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS* nodeParams) {
  FILL(body, body.host(nodeParams));
  return set(hNode, body);
}
CUresult graph_event_record_node_set_event(CUgraphNode hNode, CUevent event) {
  FILL(body, body.event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
  return set(hNode, body);
}
CUresult graph_event_wait_node_set_event(CUgraphNode hNode, CUevent event) {
  FILL(body, body.event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
  return set(hNode, body);
}
CUresult graph_batch_mem_op_node_set_params(CUgraphNode hNode,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  FILL(body, body.batch(nodeParams));
  return set(hNode, body);
}
CUresult graph_node_set_params(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  FILL(body, body.any(nodeParams));
  if (body.type() == CU_GRAPH_NODE_TYPE_CONDITIONAL) return CUDA_ERROR_NOT_SUPPORTED;
  if (body.type() == CU_GRAPH_NODE_TYPE_GRAPH || body.type() == CU_GRAPH_NODE_TYPE_EMPTY) {
    return static_cast<CUresult>(refuse_part("cuGraphNodeSetParams of a node of this type"));
  }
  return set(hNode, body);
}

// ---- changing an exec's

CUresult graph_exec_kernel_node_set_params(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILL(body, body.kernel(widened(*nodeParams)));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_kernel_node_set_params_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILL(body, body.kernel(*nodeParams));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_memcpy_node_set_params(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  FILL(body, body.memcpy(copyParams, ctx));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_memset_node_set_params(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_MEMSET_NODE_PARAMS* memsetParams,
                                           CUcontext ctx) {
  FILL(body, body.memset(memsetParams, ctx));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_host_node_set_params(CUgraphExec hGraphExec, CUgraphNode hNode,
                                         const CUDA_HOST_NODE_PARAMS* nodeParams) {
  FILL(body, body.host(nodeParams));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_child_graph_node_set_params(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                CUgraph childGraph) {
  FILL(body, body.child(childGraph));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_event_record_node_set_event(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                CUevent event) {
  FILL(body, body.event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_event_wait_node_set_event(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              CUevent event) {
  FILL(body, body.event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_batch_mem_op_node_set_params(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                 const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  FILL(body, body.batch(nodeParams));
  return set(hGraphExec, hNode, body);
}
CUresult graph_exec_node_set_params(CUgraphExec hGraphExec, CUgraphNode hNode,
                                    CUgraphNodeParams* nodeParams) {
  FILL(body, body.any(nodeParams));
  if (body.type() == CU_GRAPH_NODE_TYPE_CONDITIONAL) return CUDA_ERROR_NOT_SUPPORTED;
  if (body.type() == CU_GRAPH_NODE_TYPE_EMPTY) return CUDA_ERROR_INVALID_VALUE;
  return set(hGraphExec, hNode, body);
}

}  // namespace kvgpu::guest
