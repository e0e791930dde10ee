// SPDX-License-Identifier: Apache-2.0
// Instantiated graphs.
#include <set>
#include <string>

#include "api.h"
#include "context_captures.h"

using namespace software_gpu;

namespace {

bool is_acyclic(const Graph& graph) {
  if (graph.in_order().size() != graph.nodes.size()) return false;
  for (const auto& node : graph.nodes)
    for (const auto& inner : graphs_in(*node))
      if (!is_acyclic(*inner)) return false;
  return true;
}

/// CUDA 13.0, CUDA_CONDITIONAL_NODE_PARAMS: what a body may hold.
bool can_be_in_body(CUgraphNodeType type) {
  return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_EMPTY ||
         type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_MEMSET ||
         type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

bool are_bodies_valid(const Graph& graph, bool in_body) {
  for (const auto& node : graph.nodes) {
    const CUgraphNodeType type = node->operation.type;
    if (in_body && !can_be_in_body(type)) return false;
    for (const auto& inner : graphs_in(*node))
      if (!are_bodies_valid(*inner, in_body || type == CU_GRAPH_NODE_TYPE_CONDITIONAL))
        return false;
  }
  return true;
}

void collect_conditions(const Graph& graph, std::set<const Condition*>* used,
                        std::set<const Condition*>* made) {
  for (const auto& condition : graph.conditions) made->insert(condition.get());
  for (const auto& node : graph.nodes) {
    if (node->operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
      used->insert(node->operation.params->condition.get());
    for (const auto& inner : graphs_in(*node)) collect_conditions(*inner, used, made);
  }
}

CUgraphInstantiateResult examine(const Graph& graph) {
  if (!is_acyclic(graph)) return CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  if (!are_bodies_valid(graph, false)) return CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  std::set<const Condition*> used, made;
  collect_conditions(graph, &used, &made);
  return used == made ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                      : CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
}

CUresult instantiate(CUgraphExec* out, CUgraph handle, uint64_t flags,
                     CUgraphInstantiateResult* result) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(handle);
  if (!out || !graph || graph->is_captured) return CUDA_ERROR_INVALID_VALUE;
  if (graph->parent) return CUDA_ERROR_NOT_SUPPORTED;
  *result = examine(*graph);
  if (*result != CUDA_GRAPH_INSTANTIATE_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  *result = CUDA_GRAPH_INSTANTIATE_ERROR;
  if (!graph->only_exec.expired()) return CUDA_ERROR_NOT_SUPPORTED;
  auto exec = std::make_shared<GraphExec>();
  exec->frees_on_launch = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  if (!can_be_copied(*graph)) graph->only_exec = exec;
  exec->graph = graph->clone();
  *out = reinterpret_cast<CUgraphExec>(exec.get());
  Driver::instance().graph_execs.add(std::move(exec));
  *result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return CUDA_SUCCESS;
}

bool are_alike(const GraphNode& a, const GraphNode& b) {
  if (a.operation.type != CU_GRAPH_NODE_TYPE_CONDITIONAL) return true;
  const CUDA_CONDITIONAL_NODE_PARAMS& p = a.operation.params->conditional;
  const CUDA_CONDITIONAL_NODE_PARAMS& q = b.operation.params->conditional;
  return p.type == q.type && p.size == q.size;
}

/// What a node depends on, and how, by the places of the nodes in their graph.
std::map<size_t, std::string> dependencies(const Graph& graph, const GraphNode& node) {
  std::map<size_t, std::string> result;
  for (const GraphNode* each : node.after) {
    const CUgraphEdgeData data = node.edge_from(each);
    result[graph.index_of(each)].assign(reinterpret_cast<const char*>(&data), sizeof data);
  }
  return result;
}

/// Nodes pair up in the order in which they were added.
CUgraphExecUpdateResult compare(const Graph& now, const Graph& then, const GraphNode** culprit) {
  if (now.nodes.size() != then.nodes.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (size_t i = 0; i < now.nodes.size(); ++i) {
    const GraphNode& a = *now.nodes[i];
    const GraphNode& b = *then.nodes[i];
    *culprit = &b;
    if (a.operation.type != b.operation.type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (dependencies(now, a) != dependencies(then, b))
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (!are_alike(a, b)) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    const auto inner_a = graphs_in(a), inner_b = graphs_in(b);
    for (size_t k = 0; k < inner_a.size(); ++k) {
      const auto inner = compare(*inner_a[k], *inner_b[k], culprit);
      if (inner != CU_GRAPH_EXEC_UPDATE_SUCCESS) return inner;
    }
  }
  *culprit = nullptr;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

}  // namespace

SOFTWARE_GPU_API cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                             unsigned long long flags) {
  RETURN_IF_FAILED(enter_without_error());
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags & ~static_cast<unsigned long long>(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                               CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphInstantiateResult ignored;
  return instantiate(exec, graph, flags, &ignored);
}

SOFTWARE_GPU_API cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  RETURN_IF_FAILED(enter_without_error());
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  parameters->hErrNode_out = nullptr;
  parameters->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  if (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
    return CUDA_ERROR_NOT_SUPPORTED;
  return instantiate(exec, graph, parameters->flags, &parameters->result_out);
}

SOFTWARE_GPU_API cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto exec = Driver::instance().graph_execs.find(handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_to_enqueue(*context, stream_handle, &stream));
  RETURN_IF_FAILED(refuse_question(*context, *stream));  // driver 580 captures no launch of a graph
  RETURN_IF_FAILED(allocate_for_launch(context->device, *exec));
  // What the exec's nodes and their child graphs refer to stays until the launch is done.
  std::vector<Operation> held;
  for (const auto& node : exec->graph->nodes) held.push_back(node->operation);
  Operation operation;
  operation.run = [nodes = prepare_launch(*context, *exec->graph, exec->disabled), held,
                   references = exec->graph->references](Context& c) {
    for (const Operation& node : nodes)
      if (const CUresult result = node.run(c); result != CUDA_SUCCESS) return result;
    return CUDA_SUCCESS;
  };
  return context->submit(*stream, std::move(operation));
}

SOFTWARE_GPU_API cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, stream_handle, &stream));
  if (!Driver::instance().graph_execs.find(handle)) return CUDA_ERROR_INVALID_VALUE;
  return refuse_question(*context, *stream);
}

SOFTWARE_GPU_API cuGraphExecDestroy(CUgraphExec handle) {
  RETURN_IF_FAILED(enter_without_context());
  return Driver::instance().graph_execs.take(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// As NVIDIA's driver 580, which does not name CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.
SOFTWARE_GPU_API cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  RETURN_IF_FAILED(enter_without_context());
  const auto exec = Driver::instance().graph_execs.find(handle);
  if (!exec || !flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->frees_on_launch ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle,
                                      CUgraphExecUpdateResultInfo* info) {
  RETURN_IF_FAILED(enter_without_context());
  const auto exec = Driver::instance().graph_execs.find(handle);
  const auto graph = Driver::instance().graphs.find(graph_handle);
  CUgraphExecUpdateResultInfo unwanted;
  if (!info) info = &unwanted;
  if (!exec || !graph) return CUDA_ERROR_INVALID_VALUE;
  const GraphNode* culprit = nullptr;
  *info = {};
  info->result = compare(*exec->graph, *graph, &culprit);
  info->errorNode = reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(culprit));
  if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  const auto fresh = graph->clone();
  exec->graph->references = fresh->references;
  exec->graph->conditions = fresh->conditions;
  for (size_t i = 0; i < fresh->nodes.size(); ++i) {
    exec->graph->nodes[i]->operation = fresh->nodes[i]->operation;
    exec->graph->nodes[i]->attributes = fresh->nodes[i]->attributes;
  }
  return CUDA_SUCCESS;
}

static bool can_be_disabled(const GraphNode& node) {
  const CUgraphNodeType type = node.operation.type;
  return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
         type == CU_GRAPH_NODE_TYPE_MEMSET;
}

SOFTWARE_GPU_API cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned enabled) {
  RETURN_IF_FAILED(enter_without_context());
  const auto exec = Driver::instance().graph_execs.find(handle);
  if (!exec || !node) return CUDA_ERROR_INVALID_VALUE;
  const GraphNode* const own = exec->graph->clone_of(reinterpret_cast<GraphNode*>(node));
  if (!own || !can_be_disabled(*own)) return CUDA_ERROR_INVALID_VALUE;
  if (enabled)
    exec->disabled.erase(own->id);
  else
    exec->disabled.insert(own->id);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned* enabled) {
  RETURN_IF_FAILED(enter_without_context());
  const auto exec = Driver::instance().graph_execs.find(handle);
  if (!exec || !node || !enabled) return CUDA_ERROR_INVALID_VALUE;
  const GraphNode* const own = exec->graph->clone_of(reinterpret_cast<GraphNode*>(node));
  if (!own || !can_be_disabled(*own)) return CUDA_ERROR_INVALID_VALUE;
  *enabled = exec->disabled.contains(own->id) ? 0 : 1;
  return CUDA_SUCCESS;
}
