// SPDX-License-Identifier: Apache-2.0
// What a node does, from the program's form into the wire's. Checked here is what the worker cannot
// check: handles, and the memory of this process. The rest is the driver's verdict.
#include <cstring>

#include "copy_boxes.h"
#include "graphs.h"
#include "launch.h"
#include "refuse.h"
#include "staging.h"

namespace kvgpu::guest {

namespace {

// Only what the GPU reaches can be in a graph: a launch, of which the guest learns nothing before
// it is done, reads and writes at the GPU's time.
CUresult place_in_graph(const wire::MemcpyNode& box, wire::MemcpySide* side) {
  Operand found{};
  if (const CUresult bad = place_side(box, side, &found)) return bad;
  return found.is_pageable()
             ? static_cast<CUresult>(refuse_part("a memcpy node with pageable host memory"))
             : CUDA_SUCCESS;
}

}  // namespace

NodeBody::~NodeBody() {
  if (function_ != 0) Session::get().release_function(function_);
  for (CUgraph body : bodies_) forget(to_wire(body));
  if (staged_bytes_ != 0) Staging::get().release({staged_off_, staged_bytes_});
}

CUresult NodeBody::enter(CUcontext context) {
  if (context == nullptr) return CUDA_SUCCESS;
  context_ = find_itself(context);
  return context_ == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult NodeBody::empty() { return CUDA_SUCCESS; }

CUresult NodeBody::kernel(const CUDA_KERNEL_NODE_PARAMS& p) {
  Function* const function = p.func != nullptr ? find(p.func) : find(p.kern);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (p.func == nullptr) {
    if (const CUresult bad = enter(p.ctx)) return bad;
  }
  if (const CUresult bad = need_description(*function)) return bad;
  prints_ = function->prints;
  alignas(16) std::byte params[wire::MAX_PARAM_BYTES];
  wire::KernelNode body{function->handle,
                        {p.gridDimX, p.gridDimY, p.gridDimZ},
                        {p.blockDimX, p.blockDimY, p.blockDimZ},
                        p.sharedMemBytes,
                        0,
                        wire::PARAMS_IN_RECORD,
                        0};
  if (const CUresult bad =
          gather_params(*function, p.kernelParams, p.extra, params, &body.param_bytes)) {
    return bad == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES ? CUDA_ERROR_INVALID_VALUE : bad;
  }
  if (body.param_bytes <= MAX_INLINE_PARAM_BYTES / 2) {  // the dependencies come in the same record
    put(CU_GRAPH_NODE_TYPE_KERNEL, body);
    bytes_.insert(bytes_.end(), params, params + body.param_bytes);
    return CUDA_SUCCESS;
  }
  Staging::Piece piece;
  if (const CUresult bad = Staging::get().allocate(body.param_bytes, &piece)) return bad;
  staged_off_ = piece.off;
  staged_bytes_ = piece.bytes;
  std::memcpy(Staging::get().data(piece), params, body.param_bytes);
  body.params_in = wire::PARAMS_IN_SLAB;
  put(CU_GRAPH_NODE_TYPE_KERNEL, body);
  put(CU_GRAPH_NODE_TYPE_KERNEL, piece.off);
  return CUDA_SUCCESS;
}

CUresult NodeBody::memcpy(const CUDA_MEMCPY3D* p, CUcontext context) {
  if (p == nullptr || p->srcLOD != 0 || p->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = enter(context)) return bad;
  const wire::MemcpyNode box = box_of(*p);
  wire::MemcpyNode body = box;
  if (const CUresult bad = place_in_graph(box, &body.dst)) return bad;
  if (const CUresult bad = place_in_graph(box, &body.src)) return bad;
  put(CU_GRAPH_NODE_TYPE_MEMCPY, body);
  return CUDA_SUCCESS;
}

CUresult NodeBody::memset(const CUDA_MEMSET_NODE_PARAMS* p, CUcontext context) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = enter(context)) return bad;
  uint64_t row_bytes, bytes;
  if (__builtin_mul_overflow(p->width, p->elementSize, &row_bytes) ||
      __builtin_mul_overflow(p->pitch, p->height == 0 ? 0 : p->height - 1, &bytes) ||
      __builtin_add_overflow(bytes, row_bytes, &bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Operand to = operand(p->dst, bytes);
  if (to.is_pageable()) return CUDA_ERROR_INVALID_VALUE;
  put(CU_GRAPH_NODE_TYPE_MEMSET,
      wire::MemsetNode{to.gpu_address, p->pitch, p->value, p->elementSize, p->width, p->height});
  return CUDA_SUCCESS;
}

CUresult NodeBody::host(const CUDA_HOST_NODE_PARAMS* p) {
  if (p == nullptr || p->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  function_ = Session::get().add_graph_function(p->fn, p->userData);
  put(CU_GRAPH_NODE_TYPE_HOST, wire::HostNode{function_});
  return CUDA_SUCCESS;
}

CUresult NodeBody::child(CUgraph graph) {
  if (find(graph) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  object_ = to_wire(graph);
  put(CU_GRAPH_NODE_TYPE_GRAPH, wire::ObjectNode{object_});
  return CUDA_SUCCESS;
}

CUresult NodeBody::event(CUgraphNodeType type, CUevent event) {
  if (find(event) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  object_ = to_wire(event);
  put(type, wire::ObjectNode{object_});
  return CUDA_SUCCESS;
}

CUresult NodeBody::conditional(CUDA_CONDITIONAL_NODE_PARAMS* p) {
  if (p->ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult bad = enter(p->ctx)) return bad;
  if (p->size > wire::MAX_BODIES) {
    return static_cast<CUresult>(refuse_part("a conditional node with more than 1,024 bodies"));
  }
  put(CU_GRAPH_NODE_TYPE_CONDITIONAL,
      wire::ConditionalNode{p->handle, static_cast<uint32_t>(p->type), p->size});
  for (unsigned i = 0; i < p->size; ++i) {
    const Graph* const body = tables().graphs.create();
    if (body == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    bodies_.push_back(from_wire<CUgraph>(body->handle));
    put(CU_GRAPH_NODE_TYPE_CONDITIONAL, body->handle);
  }
  conditional_ = p;
  return CUDA_SUCCESS;
}

void NodeBody::adopt_bodies(Graph& graph, CUgraphNode node) {
  if (conditional_ == nullptr) return;
  for (CUgraph body : bodies_) {
    find(body)->parent = graph.handle;
    graph.children.push_back(to_wire(body));
  }
  std::vector<CUgraph>& kept = graph.bodies[to_wire(node)] = std::move(bodies_);
  bodies_.clear();
  conditional_->phGraph_out = kept.data();
}

CUresult NodeBody::any(CUgraphNodeParams* p) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == sizeof p->kernel);
  CUDA_KERNEL_NODE_PARAMS as_kernel;
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      std::memcpy(&as_kernel, &p->kernel, sizeof as_kernel);
      return kernel(as_kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return memcpy(&p->memcpy.copyParams, p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& m = p->memset;
      const CUDA_MEMSET_NODE_PARAMS set{m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
      return memset(&set, m.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS host_params{p->host.fn, p->host.userData};
      return host(&host_params);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      if (p->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) {
        return static_cast<CUresult>(refuse_part("a child graph that moves into its parent"));
      }
      return child(p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return empty();
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return event(p->type, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return event(p->type, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS as_alloc;
      static_assert(sizeof as_alloc == sizeof p->alloc);
      std::memcpy(&as_alloc, &p->alloc, sizeof as_alloc);
      return alloc(&as_alloc);
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return free(p->free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const auto& m = p->memOp;
      const CUDA_BATCH_MEM_OP_NODE_PARAMS as_batch{m.ctx, m.count, m.paramArray, m.flags};
      return batch(&as_batch);
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return conditional(&p->conditional);
    default:
      return static_cast<CUresult>(refuse_part("a graph node of this type"));
  }
}

void NodeBody::belongs_to(Graph& graph) {
  Graph& holder = outermost(graph);
  const bool is_memory =
      type_ == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type_ == CU_GRAPH_NODE_TYPE_MEM_FREE;
  holder.has_memory |= is_memory;
  holder.prints |= prints_;
  if (type_ == CU_GRAPH_NODE_TYPE_GRAPH) {
    Graph* const child = tables().graphs.find(object_);
    if (child == nullptr) return;
    const std::vector<uint64_t> functions = outermost(*child).functions;
    for (const uint64_t function : functions) {
      Session::get().keep_function(function);
      holder.functions.push_back(function);
    }
    take_over(outermost(*child), &holder);
  } else if (object_ != 0) {
    holder.events.insert(object_);
    if (type_ == CU_GRAPH_NODE_TYPE_EVENT_RECORD) holder.recorded.insert(object_);
  }
  if (function_ != 0) holder.functions.push_back(function_);
  function_ = 0;
}

CUresult NodeBody::may_belong_to(const GraphExec& exec, CUgraphNode node) const {
  if (type_ == CU_GRAPH_NODE_TYPE_GRAPH) {
    Graph* const child = tables().graphs.find(object_);
    const bool runs = child != nullptr && !outermost(*child).functions.empty();
    if (runs || !exec.host_nodes.empty()) {
      return static_cast<CUresult>(
          refuse_part("cuGraphExecChildGraphNodeSetParams where host functions are involved"));
    }
  }
  if (type_ != CU_GRAPH_NODE_TYPE_HOST) return CUDA_SUCCESS;
  for (const auto& host_node : exec.host_nodes) {
    if (host_node.node == to_wire(node)) return CUDA_SUCCESS;
  }
  // A child's, or of the graph before cuGraphExecUpdate: which function it runs is not known, and
  // one that is still wanted must not be forgotten.
  return static_cast<CUresult>(refuse_part(
      "cuGraphExecHostNodeSetParams of a node that the exec was not made or updated of"));
}

void NodeBody::belongs_to(GraphExec& exec, CUgraphNode node) {
  exec.prints |= prints_;
  if (type_ == CU_GRAPH_NODE_TYPE_GRAPH) {
    if (Graph* const child = tables().graphs.find(object_)) {
      take_over(outermost(*child), &exec);
    }
  } else if (object_ != 0) {
    exec.events.insert(object_);
    if (type_ == CU_GRAPH_NODE_TYPE_EVENT_RECORD) exec.recorded.insert(object_);
  }
  expect_output_of(exec);
  for (auto& host_node : exec.host_nodes) {
    if (function_ == 0 || host_node.node != to_wire(node)) continue;
    std::swap(host_node.function, function_);  // the old one goes with this
  }
}

}  // namespace kvgpu::guest
