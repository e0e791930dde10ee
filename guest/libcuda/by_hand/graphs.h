// SPDX-License-Identifier: Apache-2.0
// Graphs. Their nodes and edges are the driver's, in the worker; here is what the worker cannot
// know: which host functions a graph keeps alive, and which events it will record.
#pragma once

#include <vector>

#include "call.h"
#include "kvgpu/graph_calls.h"

namespace kvgpu::guest {

// Works without a current context, and during captures, as natively.
class GraphCall : public Call {
 public:
  explicit GraphCall(Context* context = nullptr)
      : Call(CaptureRule::ALLOWED, context, ContextRule::OPTIONAL) {}
};

// Where one graph becomes part of another: a child graph, a clone, an exec.
template <typename From, typename To>
void take_over(const From& from, To* to) {
  to->events.insert(from.events.begin(), from.events.end());
  to->recorded.insert(from.recorded.begin(), from.recorded.end());
  to->has_memory |= from.has_memory;
  to->prints |= from.prints;
}

// What the exec is of is in it now.
void expect_output_of(const GraphExec& exec);

// Exactly the host nodes that a launch of the graph runs now. The caller keeps none of them yet.
CUresult list_host_nodes(const GraphCall& call, Graph& graph,
                         std::vector<GraphExec::HostNode>* nodes);

// What a node does, on its way to the worker.
class NodeBody {
 public:
  NodeBody() = default;
  ~NodeBody();
  NodeBody(const NodeBody&) = delete;
  NodeBody& operator=(const NodeBody&) = delete;

  // Each says CUDA_SUCCESS or what is wrong with what the program gave.
  CUresult kernel(const CUDA_KERNEL_NODE_PARAMS& params);
  CUresult memcpy(const CUDA_MEMCPY3D* params, CUcontext context);
  CUresult memset(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context);
  CUresult host(const CUDA_HOST_NODE_PARAMS* params);
  CUresult child(CUgraph graph);
  CUresult event(CUgraphNodeType type, CUevent event);
  CUresult empty();
  CUresult alloc(const CUDA_MEM_ALLOC_NODE_PARAMS* params);
  CUresult free(CUdeviceptr dptr);
  CUresult batch(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params);
  CUresult conditional(CUDA_CONDITIONAL_NODE_PARAMS* params);
  CUresult any(CUgraphNodeParams* params);

  CUgraphNodeType type() const { return type_; }
  Context* context() const { return context_; }  // a green one itself; null: the current one
  Part bytes() const { return {bytes_.data(), static_cast<uint32_t>(bytes_.size())}; }

  // The node is there: what it names belongs to this graph or exec now.
  void belongs_to(Graph& graph);
  // Likewise the bodies of a conditional node, which the program is told of.
  void adopt_bodies(Graph& graph, CUgraphNode node);
  // Likewise what an alloc node has been given.
  CUresult adopt(uint64_t dptr, Context* context);
  uint64_t address() const { return address_; }
  CUresult may_belong_to(const GraphExec& exec, CUgraphNode node) const;
  void belongs_to(GraphExec& exec, CUgraphNode node);

 private:
  template <typename T>
  void put(CUgraphNodeType type, const T& body) {
    type_ = type;
    const auto* const first = reinterpret_cast<const std::byte*>(&body);
    bytes_.insert(bytes_.end(), first, first + sizeof body);
  }
  CUresult enter(CUcontext context);

  CUgraphNodeType type_ = CU_GRAPH_NODE_TYPE_EMPTY;
  Context* context_ = nullptr;
  std::vector<std::byte> bytes_;
  uint64_t function_ = 0;    // kept by this
  wire::Handle object_ = 0;  // graph or event
  bool prints_ = false;      // the kernel may
  CUDA_CONDITIONAL_NODE_PARAMS* conditional_ = nullptr;
  std::vector<CUgraph> bodies_;                 // of it; this object's until the node is there
  uint64_t memory_bytes_ = 0, address_ = 0;     // of an alloc node
  uint64_t staged_off_ = 0, staged_bytes_ = 0;  // parameters in the slab
};

}  // namespace kvgpu::guest
