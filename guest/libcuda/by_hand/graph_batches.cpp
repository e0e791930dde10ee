// SPDX-License-Identifier: Apache-2.0
// Nodes that wait for values in memory and write them.
#include <algorithm>
#include <cstring>
#include <memory>

#include "generated/api.gen.h"
#include "graphs.h"
#include "stream_values.h"

namespace kvgpu::guest {

CUresult NodeBody::batch(const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  if (p == nullptr || p->paramArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = enter(p->ctx)) return bad;
  if (const CUresult bad = check_batch(p->paramArray, p->count, p->flags)) return bad;
  put(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, wire::BatchNode{0, p->count, p->flags});
  static_assert(sizeof(CUstreamBatchMemOpParams) == sizeof(wire::StreamOperation));
  const auto* const first = reinterpret_cast<const std::byte*>(p->paramArray);
  bytes_.insert(bytes_.end(), first, first + p->count * sizeof(wire::StreamOperation));
  return CUDA_SUCCESS;
}

CUresult graph_batch_mem_op_node_get_params(CUgraphNode hNode,
                                            CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams_out) {
  if (nodeParams_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  struct Found {
    wire::GraphNodeFound head;
    wire::BatchNode body;
    CUstreamBatchMemOpParams list[wire::MAX_STREAM_OPERATIONS];
  };
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (!is_live(wire::Kind::GRAPH_NODE, hNode)) return CUDA_ERROR_INVALID_VALUE;
  const auto found = std::make_unique<Found>();
  const wire::GraphNodeParams body{
      call.context(), to_wire(hNode), 0, 0, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, 0};
  const CUresult result = call.sync(wire::Op::GRAPH_NODE_PARAMS, body, found.get());
  if (result != CUDA_SUCCESS) return result;
  Graph* const graph = tables().graphs.find(found->head.graph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t n = std::min(found->body.n, wire::MAX_STREAM_OPERATIONS);
  auto& list = graph->batches[to_wire(hNode)];
  list.assign(found->list, found->list + n);
  *nodeParams_out = {from_wire<CUcontext>(found->body.context), n, list.data(), found->body.flags};
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
