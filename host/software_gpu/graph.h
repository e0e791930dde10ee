// SPDX-License-Identifier: Apache-2.0
// Graphs and stream capture.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "condition.h"
#include "graph_memory.h"
#include "stream.h"
#include "user_object.h"

namespace software_gpu {

struct Device;
struct Graph;

/// What a node does, as CUDA's structs say it; the one of its type counts.
struct NodeParams {
  NodeParams() = default;
  NodeParams(const NodeParams&) = delete;
  NodeParams& operator=(const NodeParams&) = delete;
  CUDA_KERNEL_NODE_PARAMS kernel{};  // kernelParams leads into the two below
  std::vector<uint64_t> parameters;
  std::vector<void*> pointers;
  CUDA_MEMCPY3D copy{};
  CUDA_MEMSET_NODE_PARAMS fill{};
  CUDA_HOST_NODE_PARAMS host{};
  std::shared_ptr<Graph> child;
  std::shared_ptr<Event> event;
  CUDA_MEM_ALLOC_NODE_PARAMS alloc{};  // accessDescs leads into what follows
  std::vector<CUmemAccessDesc> access;
  std::shared_ptr<GraphMemory> memory;
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};  // paramArray leads into what follows
  std::vector<CUstreamBatchMemOpParams> operations;
  CUDA_CONDITIONAL_NODE_PARAMS conditional{};  // phGraph_out leads into the second of these
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> body_handles;
  std::shared_ptr<Condition> condition;
};

struct GraphNode {
  Graph* graph = nullptr;
  uint64_t id = 0;
  uint64_t original = 0;  // the id of the node that it is a clone of
  Operation operation;
  std::vector<GraphNode*> after;
  std::map<const GraphNode*, CUgraphEdgeData> edges;  // from those of `after` that are not plain
  std::map<int, CUkernelNodeAttrValue> attributes;
  CUgraphEdgeData edge_from(const GraphNode* before) const;
};

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;  // in the order in which they were added
  // Of an exec also held by its launches until they are done.
  std::shared_ptr<UserReferences> references = std::make_shared<UserReferences>();
  std::weak_ptr<struct GraphExec> only_exec;  // of a graph that allocates, or with conditions
  std::vector<std::shared_ptr<Condition>> conditions;  // that were made for it
  const Graph* parent = nullptr;                       // of a conditional node's body
  bool is_captured = false;  // by a capture on its way; under Context::order_mutex
  GraphNode* add(Operation operation, std::vector<GraphNode*> after);
  void remove(const GraphNode* node);
  size_t index_of(const GraphNode* node) const;
  GraphNode* clone_of(const GraphNode* node) const;  // null: there is none
  std::shared_ptr<Graph> clone() const;
  /// Each node after those that it depends on; shorter than `nodes` if there is a cycle.
  std::vector<GraphNode*> in_order() const;
};

/// An instantiated graph: a clone, so the graph may be changed or destroyed afterwards.
struct GraphExec {
  std::shared_ptr<Graph> graph;
  std::set<uint64_t> disabled;  // ids of the clone's nodes
  bool frees_on_launch = false;
};

/// Does it allocate or free memory?
bool has_memory(const Graph& graph);
/// Does it hold conditional nodes?
bool has_conditional(const Graph& graph);
/// The graphs that a node runs.
std::vector<std::shared_ptr<Graph>> graphs_in(const GraphNode& node);
/// May an edge of this kind lead from such a node to such a one? Whatever its kind, the second runs
/// after the first.
bool is_edge_valid(const CUgraphEdgeData& data, CUgraphNodeType from, CUgraphNodeType to);
/// Can there be another one like it, in a child node for instance?
inline bool can_be_copied(const Graph& graph) {
  return !has_memory(graph) && !has_conditional(graph);
}
/// What a launch allocates and frees; an error if something has not been freed since the last one.
[[nodiscard]] CUresult allocate_for_launch(Device& device, const GraphExec& exec);

/// What one launch runs, one after another. Events get their new record now.
std::vector<Operation> prepare_launch(Context& context, const Graph& graph,
                                      const std::set<uint64_t>& disabled);

/// A capture on its way. Under Context::order_mutex.
struct Capture {
  std::shared_ptr<Graph> graph;
  CUstreamCaptureMode mode;
  std::thread::id thread;  // that began it
  const Stream* origin;
  uint64_t id;
  bool invalid = false;
  bool is_new_graph = true;  // otherwise the program's
};

/// True when all of `nodes` are in `front` or before it.
bool joined(const std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& front);
void add_unique(std::vector<GraphNode*>* to, const std::vector<GraphNode*>& from);

/// Adds a node that does what `make` fills in. Its context is the one named, or the current one.
using MakeOperation = std::function<CUresult(Context*, Operation*)>;
[[nodiscard]] CUresult add_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                size_t n_after, CUcontext context, const MakeOperation& make);

/// The operations of nodes; CUDA_SUCCESS or what is wrong with the parameters.
[[nodiscard]] CUresult make_kernel(Context& context, const CUDA_KERNEL_NODE_PARAMS& params,
                                   bool cooperative, Operation* operation);
[[nodiscard]] CUresult make_copy(Context& context, const CUDA_MEMCPY3D& params,
                                 Operation* operation);
[[nodiscard]] CUresult make_fill(Context& context, const CUDA_MEMSET_NODE_PARAMS& params,
                                 Operation* operation);
[[nodiscard]] CUresult make_host(const CUDA_HOST_NODE_PARAMS& params, Operation* operation);
[[nodiscard]] CUresult make_alloc(const CUDA_MEM_ALLOC_NODE_PARAMS& params, Operation* operation);
[[nodiscard]] CUresult make_free(Device& device, const Graph& graph, CUdeviceptr address,
                                 Operation* operation);
[[nodiscard]] CUresult make_batch(Context& context, const CUDA_BATCH_MEM_OP_NODE_PARAMS& params,
                                  Operation* operation);
/// Its bodies are made, and told in `p`.
[[nodiscard]] CUresult make_conditional(Context& context, const Graph& graph,
                                        CUDA_CONDITIONAL_NODE_PARAMS* p, Operation* operation);
/// What runs when a launch comes to a conditional node.
Operation make_branch(const NodeParams& params, std::vector<std::vector<Operation>> bodies);
std::shared_ptr<const NodeParams> clone_conditional(const NodeParams& original);
[[nodiscard]] CUresult make_child(std::shared_ptr<Graph> child, Operation* operation);

}  // namespace software_gpu
