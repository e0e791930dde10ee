// SPDX-License-Identifier: Apache-2.0
// What a node of a graph does, between the wire and the driver.
#pragma once

#include <span>
#include <vector>

#include "kvgpu/graph_calls.h"
#include "session.h"

namespace kvgpu::worker {

// A host function of the guest, in the worker: its id is all there is to it, so nothing can outlive
// or leave it.
void relay(void* guest_function, CUresult status);

struct Edges {
  std::vector<CUgraphNode> from, to;  // `to` is empty where there are only nodes
  std::vector<CUgraphEdgeData> data;
  bool are_plain() const;
};

// What follows `head_bytes` of the record's body: n edges between nodes of the guest's.
CUresult read_edges(Session& session, const Task& task, size_t head_bytes, uint64_t n,
                    bool two_ends, Edges* edges);

// Where an operation of a batch waits or writes: in the guest's own memory?
bool is_allowed(const Session& session, const CUstreamBatchMemOpParams& params);

// Ready for the driver; the pointers inside lead into this object.
class NodeWork {
 public:
  NodeWork() = default;
  NodeWork(const NodeWork&) = delete;
  NodeWork& operator=(const NodeWork&) = delete;

  // Reads what follows a record's head. A malformed record ends the session.
  CUresult read(Session& session, const Task& task, uint32_t type, std::span<const std::byte> rest);

  CUresult add(const DriverTable& driver, CUgraph graph, const std::vector<CUgraphNode>& after,
               CUcontext context, CUgraphNode* node);
  // After add(): the memory that the node allocates, 0 bytes: none.
  uint64_t memory_bytes() const {
    return type_ == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? alloc_.bytesize : 0;
  }
  CUdeviceptr memory() const { return alloc_.dptr; }
  // After add(): the graphs of the bodies that the node has get the names that the guest has
  // chosen.
  [[nodiscard]] bool name_bodies(HandleTable& handles, wire::Handle node) const;
  CUresult set(const DriverTable& driver, CUgraphNode node, CUcontext context);
  CUresult set(const DriverTable& driver, CUgraphExec exec, CUgraphNode node, CUcontext context);

 private:
  CUresult read_kernel(Session& session, const Task& task, std::span<const std::byte> rest);
  CUresult read_batch(Session& session, const Task& task, std::span<const std::byte> rest);
  CUresult read_conditional(Session& session, const Task& task, std::span<const std::byte> rest);
  CUresult read_alloc(Session& session, const Task& task, std::span<const std::byte> rest);
  CUresult add_conditional(const DriverTable& driver, CUgraph graph,
                           const std::vector<CUgraphNode>& after, CUcontext context,
                           CUgraphNode* node);
  CUresult point_to_params(Session& session);

  CUgraphNodeType type_ = CU_GRAPH_NODE_TYPE_EMPTY;
  CUDA_KERNEL_NODE_PARAMS kernel_{};
  CUDA_MEMCPY3D memcpy_{};
  CUDA_MEMSET_NODE_PARAMS memset_{};
  CUDA_HOST_NODE_PARAMS host_{};
  CUgraph child_ = nullptr;
  CUevent event_ = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS alloc_{};
  std::vector<CUmemAccessDesc> access_;
  CUdeviceptr freed_ = 0;
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch_{};
  CUDA_CONDITIONAL_NODE_PARAMS conditional_{};
  std::vector<wire::Handle> bodies_;
  std::vector<CUstreamBatchMemOpParams> operations_;
  std::vector<std::byte> params_;
  std::vector<void*> pointers_;
  size_t param_bytes_ = 0;
  void* extra_[5] = {};
};

// The reverse: what the driver says of a node, as the guest's library understands it.
CUresult describe_node(Session& session, const Task& task, const wire::GraphNodeParams& body,
                       ReplyWriter& reply);

}  // namespace kvgpu::worker
