// SPDX-License-Identifier: Apache-2.0
// Nodes in the general form, CUgraphNodeParams, and edges with data.
#include <cstring>

#include "api.h"

using namespace software_gpu;

namespace {

/// The older struct with the beginning of the newer one.
template <class Older, class Newer>
Older older(const Newer& newer) {
  static_assert(sizeof(Older) <= sizeof(Newer));
  Older result;
  memcpy(&result, &newer, sizeof result);
  return result;
}

/// Each type of node has a call of its own; this one chooses among them.
CUresult add(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
             CUgraphNodeParams& p) {
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto kernel = older<CUDA_KERNEL_NODE_PARAMS>(p.kernel);
      return cuGraphAddKernelNode_v2(node, graph, after, n, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(node, graph, after, n, &p.memcpy.copyParams, p.memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto fill = older<CUDA_MEMSET_NODE_PARAMS>(p.memset);
      return cuGraphAddMemsetNode(node, graph, after, n, &fill, p.memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const auto host = older<CUDA_HOST_NODE_PARAMS>(p.host);
      return cuGraphAddHostNode(node, graph, after, n, &host);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      if (p.graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)
        return CUDA_ERROR_NOT_SUPPORTED;
      return cuGraphAddChildGraphNode(node, graph, after, n, p.graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return cuGraphAddEmptyNode(node, graph, after, n);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(node, graph, after, n, p.eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(node, graph, after, n, p.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      auto alloc = older<CUDA_MEM_ALLOC_NODE_PARAMS>(p.alloc);
      RETURN_IF_FAILED(cuGraphAddMemAllocNode(node, graph, after, n, &alloc));
      p.alloc.dptr = alloc.dptr;
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(node, graph, after, n, p.free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const auto batch = older<CUDA_BATCH_MEM_OP_NODE_PARAMS>(p.memOp);
      return cuGraphAddBatchMemOpNode(node, graph, after, n, &batch);
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      if (!p.conditional.ctx) return CUDA_ERROR_INVALID_CONTEXT;
      return add_node(node, graph, after, n, p.conditional.ctx,
                      [&](Context* context, Operation* operation) {
                        const auto found = Driver::instance().graphs.find(graph);
                        if (!context) return CUDA_ERROR_INVALID_VALUE;
                        return make_conditional(*context, *found, &p.conditional, operation);
                      });
    default:
      return p.type < CU_GRAPH_NODE_TYPE_KERNEL || p.type > CU_GRAPH_NODE_TYPE_CONDITIONAL
                 ? CUDA_ERROR_INVALID_VALUE
                 : CUDA_ERROR_NOT_SUPPORTED;
  }
}

/// Of the graph's node, or of its clone in the exec.
CUresult set(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams& p) {
  RETURN_IF_FAILED(enter_without_context());
  if (!node || node_of(node)->operation.type != p.type) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = nullptr;
  RETURN_IF_FAILED(cuCtxGetCurrent(&context));
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto kernel = older<CUDA_KERNEL_NODE_PARAMS>(p.kernel);
      return exec ? cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel)
                  : cuGraphKernelNodeSetParams_v2(node, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return exec ? cuGraphExecMemcpyNodeSetParams(exec, node, &p.memcpy.copyParams,
                                                   p.memcpy.copyCtx ? p.memcpy.copyCtx : context)
                  : cuGraphMemcpyNodeSetParams(node, &p.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto fill = older<CUDA_MEMSET_NODE_PARAMS>(p.memset);
      return exec ? cuGraphExecMemsetNodeSetParams(exec, node, &fill,
                                                   p.memset.ctx ? p.memset.ctx : context)
                  : cuGraphMemsetNodeSetParams(node, &fill);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const auto host = older<CUDA_HOST_NODE_PARAMS>(p.host);
      return exec ? cuGraphExecHostNodeSetParams(exec, node, &host)
                  : cuGraphHostNodeSetParams(node, &host);
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return exec ? cuGraphExecEventWaitNodeSetEvent(exec, node, p.eventWait.event)
                  : cuGraphEventWaitNodeSetEvent(node, p.eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return exec ? cuGraphExecEventRecordNodeSetEvent(exec, node, p.eventRecord.event)
                  : cuGraphEventRecordNodeSetEvent(node, p.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const auto batch = older<CUDA_BATCH_MEM_OP_NODE_PARAMS>(p.memOp);
      return exec ? cuGraphExecBatchMemOpNodeSetParams(exec, node, &batch)
                  : cuGraphBatchMemOpNodeSetParams(node, &batch);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return exec ? cuGraphExecChildGraphNodeSetParams(exec, node, p.graph.graph)
                  : CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

SOFTWARE_GPU_API cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                   const CUgraphEdgeData* data, size_t n, CUgraphNodeParams* p) {
  RETURN_IF_FAILED(enter_without_context());
  if (!p || (n != 0 && !after)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; data && i < n; ++i)
    if (!after[i] || !is_edge_valid(data[i], node_of(after[i])->operation.type, p->type))
      return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(add(node, graph, after, n, *p));
  constexpr CUgraphEdgeData PLAIN{};
  for (size_t i = 0; data && i < n; ++i)
    if (memcmp(&data[i], &PLAIN, sizeof PLAIN) != 0)
      node_of(*node)->edges[node_of(after[i])] = data[i];
  return CUDA_SUCCESS;
}

#undef cuGraphAddNode
SOFTWARE_GPU_API cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                size_t n, CUgraphNodeParams* p) {
  return cuGraphAddNode_v2(node, graph, after, nullptr, n, p);
}

SOFTWARE_GPU_API cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* p) {
  return p ? set(nullptr, node, *p) : CUDA_ERROR_INVALID_VALUE;
}

SOFTWARE_GPU_API cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                          CUgraphNodeParams* p) {
  return exec && p ? set(exec, node, *p) : CUDA_ERROR_INVALID_VALUE;
}
