// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs: added, asked for, changed.
#include <algorithm>

#include "api.h"

using namespace software_gpu;

CUresult software_gpu::add_node(CUgraphNode* out, CUgraph handle, const CUgraphNode* after,
                                size_t n_after, CUcontext context_handle,
                                const MakeOperation& make) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(handle);
  if (!out || !graph || (n_after != 0 && !after)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphNode*> before;
  for (size_t i = 0; i < n_after; ++i) {
    if (!after[i] || node_of(after[i])->graph != graph.get()) return CUDA_ERROR_INVALID_VALUE;
    if (std::ranges::find(before, node_of(after[i])) != before.end())
      return CUDA_ERROR_INVALID_VALUE;
    before.push_back(node_of(after[i]));
  }
  Context* const context = context_handle ? context_of(context_handle) : &any_context();
  Operation operation;
  RETURN_IF_FAILED(make(context, &operation));
  *out = reinterpret_cast<CUgraphNode>(graph->add(std::move(operation), std::move(before)));
  return CUDA_SUCCESS;
}

namespace {

CUresult find_event(CUevent handle, CUgraphNodeType type, Operation* operation) {
  auto event = Driver::instance().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_VALUE;
  if (event->shared) return CUDA_ERROR_NOT_SUPPORTED;
  auto params = std::make_shared<NodeParams>();
  params->event = std::move(event);
  operation->type = type;
  operation->params = std::move(params);
  return CUDA_SUCCESS;
}

/// The parameters of a node of this type; null: it is of another.
const NodeParams* params_of(CUgraphNode handle, CUgraphNodeType type) {
  if (!handle || node_of(handle)->operation.type != type) return nullptr;
  return node_of(handle)->operation.params.get();
}

/// The node that a call changes: of the graph, or its clone in an exec.
CUresult find_target(CUgraphExec exec_handle, CUgraphNode handle, CUgraphNodeType type,
                     GraphNode** target) {
  RETURN_IF_FAILED(enter_without_context());
  if (!params_of(handle, type)) return CUDA_ERROR_INVALID_VALUE;
  *target = node_of(handle);
  if (!exec_handle) return CUDA_SUCCESS;
  const auto exec = Driver::instance().graph_execs.find(exec_handle);
  *target = exec ? exec->graph->clone_of(node_of(handle)) : nullptr;
  return *target ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool is_cooperative(const GraphNode& node) {
  const auto found = node.attributes.find(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  return found != node.attributes.end() && found->second.cooperative != 0;
}

CUresult set_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* p) {
  GraphNode* target;
  RETURN_IF_FAILED(find_target(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, &target));
  if (!p || !current_context()) return CUDA_ERROR_INVALID_VALUE;
  return make_kernel(*current_context(), *p, is_cooperative(*target), &target->operation);
}

CUresult set_copy(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* p, CUcontext handle) {
  GraphNode* target;
  RETURN_IF_FAILED(find_target(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, &target));
  Context* const context = handle ? context_of(handle) : &any_context();
  if (!p || !context) return CUDA_ERROR_INVALID_VALUE;
  return make_copy(*context, *p, &target->operation);
}

CUresult set_fill(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* p,
                  CUcontext handle) {
  GraphNode* target;
  RETURN_IF_FAILED(find_target(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, &target));
  Context* const context = handle ? context_of(handle) : &any_context();
  if (!p || !context) return CUDA_ERROR_INVALID_VALUE;
  return make_fill(*context, *p, &target->operation);
}

/// CUDA 13.0, cuGraphExecBatchMemOpNodeSetParams: how many operations there are, and which, an exec
/// cannot change.
bool is_of_form(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p, const CUDA_BATCH_MEM_OP_NODE_PARAMS& now) {
  if (p.count != now.count || (p.count > 0 && !p.paramArray)) return false;
  return std::equal(p.paramArray, p.paramArray + p.count, now.paramArray,
                    [](const auto& a, const auto& b) { return a.operation == b.operation; });
}

CUresult set_batch(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  GraphNode* target;
  RETURN_IF_FAILED(find_target(exec, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &target));
  Context* const context = p ? context_of(p->ctx) : nullptr;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (exec && !is_of_form(*p, target->operation.params->batch)) return CUDA_ERROR_INVALID_VALUE;
  return make_batch(*context, *p, &target->operation);
}

CUresult set_host(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* p) {
  GraphNode* target;
  RETURN_IF_FAILED(find_target(exec, node, CU_GRAPH_NODE_TYPE_HOST, &target));
  return p ? make_host(*p, &target->operation) : CUDA_ERROR_INVALID_VALUE;
}

CUresult set_event(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUevent event) {
  GraphNode* target;
  RETURN_IF_FAILED(find_target(exec, node, type, &target));
  return find_event(event, type, &target->operation);
}

CUresult get_event(CUgraphNode node, CUgraphNodeType type, CUevent* event) {
  RETURN_IF_FAILED(enter_without_context());
  const NodeParams* const params = params_of(node, type);
  if (!params || !event) return CUDA_ERROR_INVALID_VALUE;
  *event = reinterpret_cast<CUevent>(params->event.get());
  return CUDA_SUCCESS;
}

/// Only those that change nothing here; clusters are not done.
bool is_known(CUkernelNodeAttrID id) {
  return id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE || id == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
         id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
         id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN ||
         id == CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
}

}  // namespace

SOFTWARE_GPU_API cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                         size_t n, const CUDA_KERNEL_NODE_PARAMS* p) {
  return add_node(node, graph, after, n, nullptr, [p](Context* context, Operation* operation) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return make_kernel(*context, *p, false, operation);
  });
}
SOFTWARE_GPU_API cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                      size_t n, const CUDA_MEMCPY3D* p, CUcontext handle) {
  return add_node(node, graph, after, n, handle, [p](Context* context, Operation* operation) {
    if (!p || !context) return CUDA_ERROR_INVALID_VALUE;
    return make_copy(*context, *p, operation);
  });
}
SOFTWARE_GPU_API cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph,
                                          const CUgraphNode* after, size_t n,
                                          const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  return add_node(node, graph, after, n, p ? p->ctx : nullptr,
                  [p](Context* context, Operation* operation) {
                    if (!p || !context) return CUDA_ERROR_INVALID_VALUE;
                    return make_batch(*context, *p, operation);
                  });
}
SOFTWARE_GPU_API cuGraphBatchMemOpNodeGetParams(CUgraphNode node,
                                                CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  RETURN_IF_FAILED(enter_without_context());
  const NodeParams* const params = params_of(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  if (!params || !p) return CUDA_ERROR_INVALID_VALUE;
  *p = params->batch;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                                const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  return set_batch(nullptr, node, p);
}
SOFTWARE_GPU_API cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  return exec ? set_batch(exec, node, p) : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                        size_t n, CUDA_MEM_ALLOC_NODE_PARAMS* p) {
  return add_node(node, graph, after, n, nullptr, [p](Context*, Operation* operation) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF_FAILED(make_alloc(*p, operation));
    p->dptr = operation->params->memory->address;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* after,
                                       size_t n, CUdeviceptr pointer) {
  return add_node(node, handle, after, n, nullptr, [=](Context* context, Operation* operation) {
    const auto graph = Driver::instance().graphs.find(handle);
    return make_free(context->device, *graph, pointer, operation);
  });
}
SOFTWARE_GPU_API cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                      size_t n, const CUDA_MEMSET_NODE_PARAMS* p,
                                      CUcontext handle) {
  return add_node(node, graph, after, n, handle, [p](Context* context, Operation* operation) {
    if (!p || !context) return CUDA_ERROR_INVALID_VALUE;
    return make_fill(*context, *p, operation);
  });
}
SOFTWARE_GPU_API cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                    size_t n, const CUDA_HOST_NODE_PARAMS* p) {
  return add_node(node, graph, after, n, nullptr, [p](Context*, Operation* operation) {
    return p ? make_host(*p, operation) : CUDA_ERROR_INVALID_VALUE;
  });
}
SOFTWARE_GPU_API cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph,
                                          const CUgraphNode* after, size_t n, CUgraph child) {
  return add_node(node, graph, after, n, nullptr, [child](Context*, Operation* operation) {
    const auto found = Driver::instance().graphs.find(child);
    if (found && !can_be_copied(*found)) return CUDA_ERROR_NOT_SUPPORTED;
    return found ? make_child(found->clone(), operation) : CUDA_ERROR_INVALID_VALUE;
  });
}
SOFTWARE_GPU_API cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                     size_t n) {
  return add_node(node, graph, after, n, nullptr,
                  [](Context*, Operation*) { return CUDA_SUCCESS; });
}
SOFTWARE_GPU_API cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph,
                                           const CUgraphNode* after, size_t n, CUevent event) {
  return add_node(node, graph, after, n, nullptr, [event](Context*, Operation* operation) {
    return find_event(event, CU_GRAPH_NODE_TYPE_EVENT_RECORD, operation);
  });
}
SOFTWARE_GPU_API cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                         size_t n, CUevent event) {
  return add_node(node, graph, after, n, nullptr, [event](Context*, Operation* operation) {
    return find_event(event, CU_GRAPH_NODE_TYPE_WAIT_EVENT, operation);
  });
}

SOFTWARE_GPU_API cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* p) {
  RETURN_IF_FAILED(enter_without_context());
  const NodeParams* const params = params_of(node, CU_GRAPH_NODE_TYPE_KERNEL);
  if (!params || !p) return CUDA_ERROR_INVALID_VALUE;
  *p = params->kernel;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* p) {
  RETURN_IF_FAILED(enter_without_context());
  const NodeParams* const params = params_of(node, CU_GRAPH_NODE_TYPE_MEMCPY);
  if (!params || !p) return CUDA_ERROR_INVALID_VALUE;
  *p = params->copy;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* p) {
  RETURN_IF_FAILED(enter_without_context());
  const NodeParams* const params = params_of(node, CU_GRAPH_NODE_TYPE_MEMSET);
  if (!params || !p) return CUDA_ERROR_INVALID_VALUE;
  *p = params->fill;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* p) {
  RETURN_IF_FAILED(enter_without_context());
  const NodeParams* const params = params_of(node, CU_GRAPH_NODE_TYPE_HOST);
  if (!params || !p) return CUDA_ERROR_INVALID_VALUE;
  *p = params->host;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* p) {
  RETURN_IF_FAILED(enter_without_context());
  const NodeParams* const params = params_of(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  if (!params || !p) return CUDA_ERROR_INVALID_VALUE;
  *p = params->alloc;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* pointer) {
  RETURN_IF_FAILED(enter_without_context());
  const NodeParams* const params = params_of(node, CU_GRAPH_NODE_TYPE_MEM_FREE);
  if (!params || !pointer) return CUDA_ERROR_INVALID_VALUE;
  *pointer = params->memory->address;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return get_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}
SOFTWARE_GPU_API cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return get_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

SOFTWARE_GPU_API cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* p) {
  return set_kernel(nullptr, node, p);
}
SOFTWARE_GPU_API cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* p) {
  return set_copy(nullptr, node, p, nullptr);
}
SOFTWARE_GPU_API cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* p) {
  return set_fill(nullptr, node, p, nullptr);
}
SOFTWARE_GPU_API cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* p) {
  return set_host(nullptr, node, p);
}
SOFTWARE_GPU_API cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return set_event(nullptr, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}
SOFTWARE_GPU_API cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return set_event(nullptr, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

SOFTWARE_GPU_API cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS* p) {
  return exec ? set_kernel(exec, node, p) : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_MEMCPY3D* p, CUcontext context) {
  return exec ? set_copy(exec, node, p, context) : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_MEMSET_NODE_PARAMS* p,
                                                CUcontext context) {
  return exec ? set_fill(exec, node, p, context) : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                              const CUDA_HOST_NODE_PARAMS* p) {
  return exec ? set_host(exec, node, p) : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                    CUevent event) {
  return exec ? set_event(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event)
              : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                  CUevent event) {
  return exec ? set_event(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event)
              : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    CUgraph child) {
  GraphNode* target;
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_target(exec, node, CU_GRAPH_NODE_TYPE_GRAPH, &target));
  const auto graph = Driver::instance().graphs.find(child);
  if (!graph || graph->nodes.size() != target->operation.params->child->nodes.size())
    return CUDA_ERROR_INVALID_VALUE;
  return make_child(graph->clone(), &target->operation);
}

SOFTWARE_GPU_API cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
                                               CUkernelNodeAttrValue* value) {
  RETURN_IF_FAILED(enter_without_context());
  if (!params_of(node, CU_GRAPH_NODE_TYPE_KERNEL) || !value || !is_known(id))
    return CUDA_ERROR_INVALID_VALUE;
  const auto found = node_of(node)->attributes.find(id);
  *value = found == node_of(node)->attributes.end() ? CUkernelNodeAttrValue{} : found->second;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
                                               const CUkernelNodeAttrValue* value) {
  RETURN_IF_FAILED(enter_without_context());
  if (!params_of(node, CU_GRAPH_NODE_TYPE_KERNEL) || !value || !is_known(id))
    return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(enter_without_error());
  node_of(node)->attributes[id] = *value;
  if (id != CU_LAUNCH_ATTRIBUTE_COOPERATIVE || !current_context()) return CUDA_SUCCESS;
  const CUDA_KERNEL_NODE_PARAMS p = node_of(node)->operation.params->kernel;
  const auto keep = node_of(node)->operation.params;
  return make_kernel(*current_context(), p, value->cooperative != 0, &node_of(node)->operation);
}
SOFTWARE_GPU_API cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  RETURN_IF_FAILED(enter_without_context());
  if (!params_of(to, CU_GRAPH_NODE_TYPE_KERNEL) || !params_of(from, CU_GRAPH_NODE_TYPE_KERNEL))
    return CUDA_ERROR_INVALID_VALUE;
  node_of(to)->attributes = node_of(from)->attributes;
  return CUDA_SUCCESS;
}
