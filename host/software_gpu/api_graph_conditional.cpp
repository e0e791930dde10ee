// SPDX-License-Identifier: Apache-2.0
// Conditional nodes: bodies that run, or run again, by a value that kernels set.
#include <algorithm>

#include "api.h"

namespace software_gpu {
namespace {

/// All that live. Kernels name them by numbers that may be wrong.
std::mutex conditions_mutex;
auto& conditions = *new std::set<Condition*>;

/// Of the graph, or of one that it is in a body of.
std::shared_ptr<Condition> find_condition(CUgraphConditionalHandle handle, const Graph& graph) {
  for (const Graph* each = &graph; each; each = each->parent)
    for (const auto& condition : each->conditions)
      if (condition->handle() == handle) return condition;
  return nullptr;
}

bool is_size_valid(CUgraphConditionalNodeType type, unsigned size) {
  switch (type) {
    case CU_GRAPH_COND_TYPE_IF:
      return size == 1 || size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
      return size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
      return size > 0;
    default:
      return false;
  }
}

using Body = std::vector<Operation>;

CUresult run_body(const std::vector<Body>& bodies, size_t index, Context& context) {
  if (index >= bodies.size()) return CUDA_SUCCESS;
  for (const Operation& operation : bodies[index]) RETURN_IF_FAILED(operation.run(context));
  return CUDA_SUCCESS;
}

}  // namespace

Condition::Condition(Context& context_, unsigned default_value_, bool assigns_default_)
    : context(context_), default_value(default_value_), assigns_default(assigns_default_) {
  std::lock_guard lock(conditions_mutex);
  conditions.insert(this);
}

Condition::~Condition() {
  std::lock_guard lock(conditions_mutex);
  conditions.erase(this);
}

bool set_condition(CUgraphConditionalHandle handle, unsigned value) {
  std::lock_guard lock(conditions_mutex);
  const auto found = conditions.find(reinterpret_cast<Condition*>(handle));
  if (found == conditions.end()) return false;
  (*found)->value.store(value);
  return true;
}

Operation make_branch(const NodeParams& params, std::vector<Body> bodies) {
  Operation operation;
  operation.run = [condition = params.condition, type = params.conditional.type,
                   bodies = std::move(bodies)](Context& context) {
    const auto value = [&condition] { return condition->value.load(); };
    if (type == CU_GRAPH_COND_TYPE_IF) return run_body(bodies, value() != 0 ? 0 : 1, context);
    if (type == CU_GRAPH_COND_TYPE_SWITCH) return run_body(bodies, value(), context);
    while (value() != 0 && context.sticky_error() == CUDA_SUCCESS)
      RETURN_IF_FAILED(run_body(bodies, 0, context));
    return CUDA_SUCCESS;
  };
  return operation;
}

std::shared_ptr<const NodeParams> clone_conditional(const NodeParams& original) {
  auto params = std::make_shared<NodeParams>();
  params->conditional = original.conditional;
  params->conditional.phGraph_out = nullptr;
  params->condition = original.condition;
  for (const auto& body : original.bodies) params->bodies.push_back(body->clone());
  return params;
}

bool has_conditional(const Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const auto& node) {
    return node->operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
  });
}

std::vector<std::shared_ptr<Graph>> graphs_in(const GraphNode& node) {
  if (node.operation.type == CU_GRAPH_NODE_TYPE_GRAPH) return {node.operation.params->child};
  if (node.operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) return node.operation.params->bodies;
  return {};
}

CUresult make_conditional(Context& context, const Graph& graph, CUDA_CONDITIONAL_NODE_PARAMS* p,
                          Operation* operation) {
  auto params = std::make_shared<NodeParams>();
  params->condition = find_condition(p->handle, graph);
  if (!params->condition || &params->condition->context != &context ||
      !is_size_valid(p->type, p->size))
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < p->size; ++i) {
    params->bodies.push_back(std::make_shared<Graph>());
    params->bodies.back()->parent = &graph;
    params->body_handles.push_back(reinterpret_cast<CUgraph>(params->bodies.back().get()));
    Driver::instance().graphs.add(params->bodies.back());
  }
  p->phGraph_out = params->body_handles.data();
  params->conditional = *p;
  operation->type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  operation->params = std::move(params);
  return CUDA_SUCCESS;
}

}  // namespace software_gpu

using namespace software_gpu;

SOFTWARE_GPU_API cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle,
                                                CUgraph graph_handle, CUcontext context_handle,
                                                unsigned default_value, unsigned flags) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(graph_handle);
  if (!handle || !graph || flags > CU_GRAPH_COND_ASSIGN_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = context_of(context_handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  RETURN_IF_FAILED(context->sticky_error());
  graph->conditions.push_back(
      std::make_shared<Condition>(*context, default_value, flags == CU_GRAPH_COND_ASSIGN_DEFAULT));
  *handle = graph->conditions.back()->handle();
  return CUDA_SUCCESS;
}
