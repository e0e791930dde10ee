// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include <algorithm>
#include <future>
#include <unordered_map>

#include "context.h"

namespace software_gpu {

namespace {

std::atomic<uint64_t> next_node_id{1};

/// A moment that comes when the last copy of the returned promise is kept or gone.
Point open_point(Context& context, std::shared_ptr<std::promise<void>>* promise) {
  *promise = std::make_shared<std::promise<void>>();
  auto queue = std::make_shared<Queue>(context);
  Operation wait;
  wait.run = [done = (*promise)->get_future().share()](Context&) {
    done.wait();
    return CUDA_SUCCESS;
  };
  Point point = queue->push(std::move(wait), {});
  queue->close();
  return point;
}

Operation record_event(Context& context, const std::shared_ptr<Event>& event) {
  auto fresh = std::make_shared<Event::Record>();
  std::shared_ptr<std::promise<void>> reached;
  fresh->point = open_point(context, &reached);
  {
    std::lock_guard lock(context.order_mutex);
    event->capture.reset();
    event->capture_front.clear();
    event->last = fresh;
  }
  Operation operation;
  operation.run = [fresh, reached](Context&) {
    fresh->time_ns.store(now_ns(), std::memory_order_release);
    reached->set_value();
    return CUDA_SUCCESS;
  };
  return operation;
}

Operation assign_default(const std::shared_ptr<Condition>& condition) {
  Operation operation;
  operation.run = [condition](Context&) {
    condition->value = condition->default_value;
    return CUDA_SUCCESS;
  };
  return operation;
}

Operation branch(Context& context, const NodeParams& params) {
  std::vector<std::vector<Operation>> bodies;
  for (const auto& body : params.bodies) bodies.push_back(prepare_launch(context, *body, {}));
  return make_branch(params, std::move(bodies));
}

Operation wait_for_event(Context& context, const Event& event) {
  Point point;
  {
    std::lock_guard lock(context.order_mutex);
    if (event.last) point = event.last->point;
  }
  Operation operation;
  operation.run = [point](Context&) {
    point.wait();
    return CUDA_SUCCESS;
  };
  return operation;
}

}  // namespace

GraphNode* Graph::add(Operation operation, std::vector<GraphNode*> after) {
  const uint64_t id = next_node_id.fetch_add(1);
  nodes.push_back(std::make_unique<GraphNode>(
      GraphNode{this, id, 0, std::move(operation), std::move(after), {}, {}}));
  return nodes.back().get();
}

void Graph::remove(const GraphNode* node) {
  for (const auto& other : nodes) {
    std::erase(other->after, node);
    other->edges.erase(node);
  }
  std::erase_if(nodes, [node](const auto& each) { return each.get() == node; });
}

CUgraphEdgeData GraphNode::edge_from(const GraphNode* before) const {
  const auto found = edges.find(before);
  return found == edges.end() ? CUgraphEdgeData{} : found->second;
}

size_t Graph::index_of(const GraphNode* node) const {
  const auto found = std::find_if(nodes.begin(), nodes.end(),
                                  [node](const auto& each) { return each.get() == node; });
  return static_cast<size_t>(found - nodes.begin());
}

GraphNode* Graph::clone_of(const GraphNode* node) const {
  for (const auto& each : nodes)
    if (each->original == node->id) return each.get();
  return nullptr;
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>();
  copy->references = std::make_shared<UserReferences>(*references);
  copy->conditions = conditions;
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (const auto& node : nodes) {
    Operation operation = node->operation;
    if (operation.type == CU_GRAPH_NODE_TYPE_GRAPH)
      static_cast<void>(make_child(operation.params->child->clone(), &operation));
    if (operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
      operation.params = clone_conditional(*operation.params);
    GraphNode* const own = copy->add(std::move(operation), {});
    own->original = node->id;
    own->attributes = node->attributes;
    copies[node.get()] = own;
  }
  for (const auto& node : nodes) {
    GraphNode* const own = copies[node.get()];
    for (GraphNode* before : node->after) own->after.push_back(copies[before]);
    for (const auto& [before, data] : node->edges) own->edges.emplace(copies[before], data);
  }
  return copy;
}

std::vector<GraphNode*> Graph::in_order() const {
  std::vector<GraphNode*> order;
  std::set<const GraphNode*> placed;
  for (bool any = true; any;) {
    any = false;
    for (const auto& node : nodes) {
      const bool ready = std::all_of(node->after.begin(), node->after.end(),
                                     [&](GraphNode* before) { return placed.contains(before); });
      if (!ready || !placed.insert(node.get()).second) continue;
      order.push_back(node.get());
      any = true;
    }
  }
  return order;
}

std::vector<Operation> prepare_launch(Context& context, const Graph& graph,
                                      const std::set<uint64_t>& disabled) {
  std::vector<Operation> operations;
  for (const auto& condition : graph.conditions)
    if (condition->assigns_default) operations.push_back(assign_default(condition));
  for (const GraphNode* node : graph.in_order()) {
    const Operation& operation = node->operation;
    if (disabled.contains(node->id)) continue;
    if (operation.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
      operations.push_back(record_event(context, operation.params->event));
    } else if (operation.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
      operations.push_back(wait_for_event(context, *operation.params->event));
    } else if (operation.type == CU_GRAPH_NODE_TYPE_GRAPH) {
      for (Operation& inner : prepare_launch(context, *operation.params->child, {}))
        operations.push_back(std::move(inner));
    } else if (operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
      operations.push_back(branch(context, *operation.params));
    } else if (operation.run) {
      operations.push_back(operation);
    }
  }
  return operations;
}

bool joined(const std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& front) {
  std::set<const GraphNode*> seen(front.begin(), front.end());
  std::vector<const GraphNode*> open(front.begin(), front.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    for (const GraphNode* before : node->after)
      if (seen.insert(before).second) open.push_back(before);
  }
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](const GraphNode* node) { return seen.contains(node); });
}

void add_unique(std::vector<GraphNode*>* to, const std::vector<GraphNode*>& from) {
  for (GraphNode* node : from)
    if (std::find(to->begin(), to->end(), node) == to->end()) to->push_back(node);
}

CUresult make_child(std::shared_ptr<Graph> child, Operation* operation) {
  auto params = std::make_shared<NodeParams>();
  params->child = std::move(child);
  operation->type = CU_GRAPH_NODE_TYPE_GRAPH;
  operation->run = nullptr;
  operation->params = std::move(params);
  return CUDA_SUCCESS;
}

}  // namespace software_gpu
