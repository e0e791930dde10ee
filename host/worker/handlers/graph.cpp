// SPDX-License-Identifier: Apache-2.0
// Graphs and execs. Nodes and edges are the driver's; a node gets its handle when the guest first
// hears of it.
#include <cstring>

#include "generated/handlers.gen.h"
#include "graph_nodes.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

namespace {

using Nodes = std::vector<CUgraphNode>;

// The context of the record, for node parameters that name one.
CUcontext context_of(Session& session, wire::Handle handle) {
  const auto context = session.handles.context(handle);
  return context == nullptr ? nullptr : context->raw;
}

// `ask` is a call that fills lists whose length it says first.
template <typename Ask>
CUresult fetch(Edges* edges, bool two_ends, Ask ask) {
  size_t n = 0;
  if (const CUresult bad = ask(nullptr, nullptr, nullptr, &n)) return bad;
  edges->from.resize(n);
  edges->to.resize(two_ends ? n : 0);
  edges->data.assign(n, {});
  if (n == 0) return CUDA_SUCCESS;
  return ask(edges->from.data(), edges->to.data(), edges->data.data(), &n);
}

CUresult fetch_nodes(const DriverTable& driver, CUgraph graph, Edges* found) {
  return fetch(found, false, [&](CUgraphNode* nodes, CUgraphNode*, CUgraphEdgeData*, size_t* n) {
    return driver.cuGraphGetNodes(graph, nodes, n);
  });
}

CUresult fetch_of_graph(const DriverTable& driver, CUgraph graph, wire::GraphListOf what,
                        Edges* found) {
  using enum wire::GraphListOf;
  if (what == NODES) return fetch_nodes(driver, graph, found);
  if (what == ROOTS) {
    return fetch(found, false, [&](CUgraphNode* nodes, CUgraphNode*, CUgraphEdgeData*, size_t* n) {
      return driver.cuGraphGetRootNodes(graph, nodes, n);
    });
  }
  if (what != EDGES) return CUDA_ERROR_INVALID_VALUE;
  return fetch(found, true,
               [&](CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* n) {
                 return driver.has(driver.cuGraphGetEdges_v2)
                            ? driver.cuGraphGetEdges_v2(graph, from, to, data, n)
                            : driver.cuGraphGetEdges(graph, from, to, n);
               });
}

CUresult fetch_of_node(const DriverTable& driver, CUgraphNode node, wire::GraphListOf what,
                       Edges* found) {
  using enum wire::GraphListOf;
  if (what != DEPENDENCIES && what != DEPENDENTS) return CUDA_ERROR_INVALID_VALUE;
  const bool before = what == DEPENDENCIES;
  const bool with_data = driver.has(driver.cuGraphNodeGetDependencies_v2);
  return fetch(found, false,
               [&](CUgraphNode* nodes, CUgraphNode*, CUgraphEdgeData* data, size_t* n) {
                 if (with_data) {
                   return before ? driver.cuGraphNodeGetDependencies_v2(node, nodes, data, n)
                                 : driver.cuGraphNodeGetDependentNodes_v2(node, nodes, data, n);
                 }
                 return before ? driver.cuGraphNodeGetDependencies(node, nodes, n)
                               : driver.cuGraphNodeGetDependentNodes(node, nodes, n);
               });
}

// The host nodes of a graph and of those inside it.
CUresult collect_functions(Session& session, CUgraph graph, wire::Handle handle,
                           std::vector<wire::GraphFunction>* found, int depth) {
  constexpr int MAX_DEPTH = 64;
  if (depth > MAX_DEPTH) return CUDA_ERROR_NOT_SUPPORTED;
  const DriverTable& driver = *session.driver;
  Edges all;
  if (const CUresult bad = fetch_nodes(driver, graph, &all)) return bad;
  for (CUgraphNode node : all.from) {
    CUgraphNodeType type;
    if (const CUresult bad = driver.cuGraphNodeGetType(node, &type)) return bad;
    if (type == CU_GRAPH_NODE_TYPE_HOST) {
      CUDA_HOST_NODE_PARAMS p{};
      if (const CUresult bad = driver.cuGraphHostNodeGetParams(node, &p)) return bad;
      // A node inside a child graph has no name that the guest could use of it here.
      const wire::Handle name = handle == 0 ? 0 : session.handles.name_node(node, handle);
      found->push_back({name, reinterpret_cast<uint64_t>(p.userData)});
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child;
      if (const CUresult bad = driver.cuGraphChildGraphNodeGetGraph(node, &child)) return bad;
      const CUresult bad =
          collect_functions(session, child, session.handles.handle_of(child), found, depth + 1);
      if (bad != CUDA_SUCCESS) return bad;
    }
  }
  return CUDA_SUCCESS;
}

CUresult add_edges(const DriverTable& driver, CUgraph graph, const Edges& e) {
  if (e.are_plain() && !driver.has(driver.cuGraphAddDependencies_v2)) {
    return driver.cuGraphAddDependencies(graph, e.from.data(), e.to.data(), e.from.size());
  }
  return driver.cuGraphAddDependencies_v2(graph, e.from.data(), e.to.data(), e.data.data(),
                                          e.from.size());
}

CUresult remove_edges(const DriverTable& driver, CUgraph graph, const Edges& e) {
  if (e.are_plain() && !driver.has(driver.cuGraphRemoveDependencies_v2)) {
    return driver.cuGraphRemoveDependencies(graph, e.from.data(), e.to.data(), e.from.size());
  }
  return driver.cuGraphRemoveDependencies_v2(graph, e.from.data(), e.to.data(), e.data.data(),
                                             e.from.size());
}

template <typename Change>
CUresult change_edges(Session& session, const Task& task, Change change) {
  wire::GraphEdges body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_VALUE;
  Edges edges;
  if (const CUresult bad = read_edges(session, task, sizeof body, body.n, true, &edges)) {
    return bad;
  }
  return change(*session.driver, graph, edges);
}

}  // namespace

CUresult graph_create(Session& session, const Task& task, ReplyWriter&) {
  wire::GraphCreate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph = nullptr;
  const CUresult result = session.driver->cuGraphCreate(&graph, 0);
  if (result == CUDA_SUCCESS && !session.handles.add(body.graph, graph, 0)) session.violation(task);
  return result;
}

CUresult graph_conditional_handle_create(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ConditionalHandleCreate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_VALUE;
  const CUcontext named = context_of(session, body.named);
  if (named == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUgraphConditionalHandle condition = 0;
  const CUresult result = session.driver->cuGraphConditionalHandleCreate(
      &condition, graph, named, body.default_value, body.flags);
  if (result != CUDA_SUCCESS) return result;
  session.conditions.add(condition, body.graph, session.handles);
  reply.put(wire::Value64{condition});
  return CUDA_SUCCESS;
}

CUresult graph_clone(Session& session, const Task& task, ReplyWriter&) {
  wire::GraphClone body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph, clone = nullptr;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = session.driver->cuGraphClone(&clone, graph);
  if (result == CUDA_SUCCESS && !session.handles.add(body.clone, clone, 0)) session.violation(task);
  return result;
}

CUresult graph_child_graph_node_get_graph(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ChildGraph body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraphNode node;
  if (!session.handles.get(body.node, &node)) return CUDA_ERROR_INVALID_VALUE;
  CUgraph child = nullptr;
  const CUresult result = session.driver->cuGraphChildGraphNodeGetGraph(node, &child);
  if (result != CUDA_SUCCESS) return result;
  wire::Handle name = session.handles.handle_of(child);
  if (name == 0) {
    name = body.graph;
    if (!session.handles.add(name, child, body.node)) session.violation(task);
  }
  reply.put(wire::ChildGraphNamed{name, session.handles.owner_of(body.node)});
  return CUDA_SUCCESS;
}

CUresult graph_add_node_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::AddGraphNode body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_VALUE;
  Edges edges;
  const CUresult bad = read_edges(session, task, sizeof body, body.n_dependencies, false, &edges);
  if (bad != CUDA_SUCCESS) return bad;
  NodeWork work;
  const auto rest = task.after<wire::AddGraphNode>();
  const CUresult wrong = work.read(session, task, body.type,
                                   rest.subspan(body.n_dependencies * sizeof(wire::GraphEdge)));
  if (wrong != CUDA_SUCCESS) return wrong;
  const DriverTable& driver = *session.driver;
  const bool plain = edges.are_plain();
  CUgraphNode node = nullptr;
  CUresult result = work.add(driver, graph, plain ? edges.from : Nodes{},
                             context_of(session, body.context), &node);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t bytes = work.memory_bytes();
  if (bytes != 0) session.add_device_range(work.memory(), {bytes, body.context, true});
  if (!plain) {
    edges.to.assign(edges.from.size(), node);
    result = add_edges(driver, graph, edges);
  }
  const wire::Handle name =
      result == CUDA_SUCCESS ? session.handles.name_node(node, body.graph) : 0;
  if (name == 0) {
    (void)driver.cuGraphDestroyNode(node);
    return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
  }
  if (!work.name_bodies(session.handles, name)) session.violation(task);
  reply.put(wire::GraphNodeNamed{name});
  if (bytes != 0) reply.put(wire::MemAllocated{work.memory()});
  return CUDA_SUCCESS;
}

CUresult graph_node_set_params(Session& session, const Task& task, ReplyWriter& reply) {
  wire::SetGraphNode body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraphNode node;
  if (!session.handles.get(body.node, &node)) return CUDA_ERROR_INVALID_VALUE;
  NodeWork work;
  if (const CUresult bad = work.read(session, task, body.type, task.after<wire::SetGraphNode>())) {
    return bad;
  }
  reply.put(wire::ChildGraphNamed{session.handles.owner_of(body.node), 0});
  return work.set(*session.driver, node, context_of(session, body.context));
}

CUresult graph_exec_node_set_params(Session& session, const Task& task, ReplyWriter&) {
  wire::SetGraphNode body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraphExec exec;
  CUgraphNode node;
  if (!session.handles.get(body.exec, &exec)) return CUDA_ERROR_INVALID_VALUE;
  if (!session.handles.get(body.node, &node)) return CUDA_ERROR_INVALID_VALUE;
  NodeWork work;
  if (const CUresult bad = work.read(session, task, body.type, task.after<wire::SetGraphNode>())) {
    return bad;
  }
  return work.set(*session.driver, exec, node, context_of(session, body.context));
}

CUresult graph_node_params(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphNodeParams body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  return describe_node(session, task, body, reply);
}

CUresult graph_add_dependencies_v2(Session& session, const Task& task, ReplyWriter&) {
  return change_edges(session, task, add_edges);
}
CUresult graph_remove_dependencies_v2(Session& session, const Task& task, ReplyWriter&) {
  return change_edges(session, task, remove_edges);
}

CUresult graph_node_find_in_clone(Session& session, const Task& task, ReplyWriter& reply) {
  wire::FindInClone body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraphNode node, found = nullptr;
  CUgraph clone;
  if (!session.handles.get(body.node, &node) || !session.handles.get(body.clone, &clone)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = session.driver->cuGraphNodeFindInClone(&found, node, clone);
  if (result != CUDA_SUCCESS) return result;
  reply.put(wire::GraphNodeNamed{session.handles.name_node(found, body.clone)});
  return CUDA_SUCCESS;
}

CUresult graph_get_nodes(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphRef body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_HANDLE;
  size_t n = 0;
  const CUresult result = session.driver->cuGraphGetNodes(graph, nullptr, &n);
  reply.put(wire::NodeCount{n});
  return result;
}

CUresult graph_list(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphList body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  const auto what = static_cast<wire::GraphListOf>(body.what);
  Edges found;
  CUgraph graph;
  CUgraphNode node;
  wire::Handle owner = body.object;
  if (session.handles.get(body.object, &graph)) {
    if (const CUresult bad = fetch_of_graph(*session.driver, graph, what, &found)) return bad;
  } else if (session.handles.get(body.object, &node)) {
    owner = session.handles.owner_of(body.object);
    if (const CUresult bad = fetch_of_node(*session.driver, node, what, &found)) return bad;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t n_all = found.from.size();
  const uint64_t first = std::min(body.first, n_all);
  const uint64_t n = std::min(n_all - first, wire::MAX_GRAPH_EDGES);
  reply.put(wire::GraphListed{n_all, n});
  for (uint64_t i = first; i < first + n; ++i) {
    wire::GraphEdge edge{session.handles.name_node(found.from[i], owner), 0, {}};
    if (!found.to.empty()) edge.to = session.handles.name_node(found.to[i], owner);
    std::memcpy(edge.data, &found.data[i], sizeof edge.data);
    if (edge.from == 0 || (!found.to.empty() && edge.to == 0)) return CUDA_ERROR_OUT_OF_MEMORY;
    reply.put(edge);
  }
  return CUDA_SUCCESS;
}

CUresult graph_functions(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphFunctions body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<wire::GraphFunction> found;
  if (const CUresult bad = collect_functions(session, graph, body.graph, &found, 0)) return bad;
  const uint64_t first = std::min<uint64_t>(body.first, found.size());
  const uint64_t n = std::min<uint64_t>(found.size() - first, wire::MAX_GRAPH_FUNCTIONS);
  reply.put(wire::GraphListed{found.size(), n});
  for (uint64_t i = first; i < first + n; ++i) reply.put(found[i]);
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::worker
