// SPDX-License-Identifier: Apache-2.0
// What nodes do is asked for. The driver knows it in the worker's terms; here it becomes the
// program's again.
#include <cstring>

#include "copy_boxes.h"
#include "generated/api.gen.h"
#include "graphs.h"
#include "memory_map.h"
#include "refuse.h"
#include "staging.h"

namespace kvgpu::guest {

namespace {

template <typename T>
struct Found {
  wire::GraphNodeFound head;
  T body;
};

template <typename T>
CUresult ask(const GraphCall& call, CUgraphNode node, CUgraphNodeType type, T* found,
             const Staging::Piece& piece = {}) {
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (!is_live(wire::Kind::GRAPH_NODE, node)) return CUDA_ERROR_INVALID_VALUE;
  const wire::GraphNodeParams body{
      call.context(), to_wire(node), piece.off, piece.bytes, static_cast<uint32_t>(type), 0};
  return call.sync(wire::Op::GRAPH_NODE_PARAMS, body, found);
}

struct KernelFound {
  wire::GraphNodeFound head;
  wire::KernelNode body;
  std::byte params[wire::MAX_PARAM_BYTES];
};

CUresult ask_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  const GraphCall call;
  const auto found = std::make_unique<KernelFound>();
  if (const CUresult bad = ask(call, node, CU_GRAPH_NODE_TYPE_KERNEL, found.get())) return bad;
  if (found->body.params_in == wire::PARAMS_IN_SLAB) {
    Staging::Piece piece;
    Staging& staging = Staging::get();
    if (const CUresult bad = staging.allocate(wire::MAX_PARAM_BYTES, &piece)) return bad;
    const CUresult bad = ask(call, node, CU_GRAPH_NODE_TYPE_KERNEL, found.get(), piece);
    if (bad == CUDA_SUCCESS) {
      std::memcpy(found->params, staging.data(piece), sizeof found->params);
    }
    staging.release(piece);
    if (bad != CUDA_SUCCESS) return bad;
  }
  Function* const function = tables().functions.find(found->body.function);
  Graph* const graph = tables().graphs.find(found->head.graph);
  if (function == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = need_description(*function)) return bad;
  Graph::KernelParams& kept = graph->kernel_params[to_wire(node)];
  kept.bytes.assign(found->params, found->params + wire::MAX_PARAM_BYTES);
  kept.bytes.resize(std::min<size_t>(function->param_bytes, wire::MAX_PARAM_BYTES));
  kept.pointers.clear();
  for (const wire::ParamInfo& param : function->params) {
    if (param.offset + uint64_t{param.bytes} > kept.bytes.size()) return CUDA_ERROR_INVALID_VALUE;
    kept.pointers.push_back(kept.bytes.data() + param.offset);
  }
  const wire::KernelNode& body = found->body;
  const bool by_function = body.named & wire::NAMED_FUNCTION;
  const bool by_kernel = body.named & wire::NAMED_KERNEL;
  const bool by_context = body.named & wire::NAMED_CONTEXT;
  *out = {by_function ? from_wire<CUfunction>(body.function) : nullptr,
          body.grid[0],
          body.grid[1],
          body.grid[2],
          body.block[0],
          body.block[1],
          body.block[2],
          body.shared_bytes,
          kept.pointers.empty() ? nullptr : kept.pointers.data(),
          nullptr,
          by_kernel ? from_wire<CUkernel>(body.function) : nullptr,
          by_context ? from_wire<CUcontext>(call.context()) : nullptr};
  return CUDA_SUCCESS;
}

// The program's name for what the GPU finds there.
uint64_t own_address(uint64_t gpu_address) {
  return memory_map().address_of(gpu_address).value_or(gpu_address);
}

CUresult ask_event(CUgraphNode node, CUgraphNodeType type, CUevent* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Found<wire::ObjectNode> found;
  if (const CUresult bad = ask(GraphCall(), node, type, &found)) return bad;
  *out = from_wire<CUevent>(found.body.object);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult graph_kernel_node_get_params(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS params;
  if (const CUresult bad = ask_kernel(hNode, &params)) return bad;
  std::memcpy(nodeParams, &params, sizeof *nodeParams);  // that one ends earlier
  if (params.func == nullptr) nodeParams->func = reinterpret_cast<CUfunction>(params.kern);
  return CUDA_SUCCESS;
}
CUresult graph_kernel_node_get_params_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : ask_kernel(hNode, nodeParams);
}

CUresult graph_memcpy_node_get_params(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Found<wire::MemcpyNode> found;
  if (const CUresult bad = ask(GraphCall(), hNode, CU_GRAPH_NODE_TYPE_MEMCPY, &found)) return bad;
  for (wire::MemcpySide* const side : {&found.body.dst, &found.body.src}) {
    if (side->type != CU_MEMORYTYPE_ARRAY) side->address = own_address(side->address);
  }
  *nodeParams = copy_of(found.body);
  return CUDA_SUCCESS;
}

CUresult graph_memset_node_get_params(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Found<wire::MemsetNode> found;
  if (const CUresult bad = ask(GraphCall(), hNode, CU_GRAPH_NODE_TYPE_MEMSET, &found)) return bad;
  const wire::MemsetNode& body = found.body;
  *nodeParams = {own_address(body.dst), body.pitch_bytes, body.value,
                 body.element_bytes,    body.width,       body.height};
  return CUDA_SUCCESS;
}

CUresult graph_host_node_get_params(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Found<wire::HostNode> found;
  if (const CUresult bad = ask(GraphCall(), hNode, CU_GRAPH_NODE_TYPE_HOST, &found)) return bad;
  return Session::get().find_graph_function(found.body.function, nodeParams)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_event_record_node_get_event(CUgraphNode hNode, CUevent* event_out) {
  return ask_event(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out);
}
CUresult graph_event_wait_node_get_event(CUgraphNode hNode, CUevent* event_out) {
  return ask_event(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out);
}

namespace {

CUresult check_attribute(CUkernelNodeAttrID attr) {
  if (attr <= CU_LAUNCH_ATTRIBUTE_IGNORE || attr >= CU_LAUNCH_ATTRIBUTE_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (wire::kernel_node_attribute_is_plain(attr)) return CUDA_SUCCESS;
  return static_cast<CUresult>(refuse_part("this attribute of a kernel node"));
}

}  // namespace

CUresult graph_kernel_node_get_attribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                         CUkernelNodeAttrValue* value_out) {
  if (value_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_attribute(attr)) return bad;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  const wire::GraphNodeAttribute body{call.context(), to_wire(hNode), attr, 0, {}};
  wire::GraphNodeAttributeValue out;
  const CUresult result = call.sync(wire::Op::cuGraphKernelNodeGetAttribute, body, &out);
  static_assert(sizeof out.value == sizeof *value_out);
  if (result == CUDA_SUCCESS) std::memcpy(value_out, out.value, sizeof out.value);
  return result;
}

CUresult graph_kernel_node_set_attribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                         const CUkernelNodeAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_attribute(attr)) return bad;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  wire::GraphNodeAttribute body{call.context(), to_wire(hNode), attr, 0, {}};
  std::memcpy(body.value, value, sizeof body.value);
  return call.sync(wire::Op::cuGraphKernelNodeSetAttribute, body);
}

}  // namespace kvgpu::guest
