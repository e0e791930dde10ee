// SPDX-License-Identifier: Apache-2.0
#include "graph_nodes.h"

#include <algorithm>
#include <cstring>

#include "copy_box.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

namespace {

template <typename T>
T take(Session& session, const Task& task, std::span<const std::byte>* rest) {
  T body;
  if (rest->size() < sizeof body) session.violation(task);
  std::memcpy(&body, rest->data(), sizeof body);
  *rest = rest->subspan(sizeof body);
  return body;
}

bool may_set(const Session& session, const wire::MemsetNode& set) {
  uint64_t row_bytes, bytes;
  if (set.width == 0 || set.height == 0) return true;
  return !__builtin_mul_overflow(set.width, set.element_bytes, &row_bytes) &&
         !__builtin_mul_overflow(set.pitch_bytes, set.height - 1, &bytes) &&
         !__builtin_add_overflow(bytes, row_bytes, &bytes) &&
         session.is_guest_memory(set.dst, bytes);
}

}  // namespace

CUresult NodeWork::read_kernel(Session& session, const Task& task,
                               std::span<const std::byte> rest) {
  const auto body = take<wire::KernelNode>(session, task, &rest);
  if (body.param_bytes > wire::MAX_PARAM_BYTES) session.violation(task);
  if (body.params_in == wire::PARAMS_IN_SLAB) {
    const auto off = take<uint64_t>(session, task, &rest);
    if (off > SLAB_BYTES || body.param_bytes > SLAB_BYTES - off) session.violation(task);
    params_.assign(session.slab() + off, session.slab() + off + body.param_bytes);
  } else {
    if (rest.size() < body.param_bytes) session.violation(task);
    params_.assign(rest.begin(), rest.begin() + body.param_bytes);
  }
  kernel_.gridDimX = body.grid[0];
  kernel_.gridDimY = body.grid[1];
  kernel_.gridDimZ = body.grid[2];
  kernel_.blockDimX = body.block[0];
  kernel_.blockDimY = body.block[1];
  kernel_.blockDimZ = body.block[2];
  kernel_.sharedMemBytes = body.shared_bytes;
  if (!session.handles.get(body.function, &kernel_.kern) &&
      !session.handles.get(body.function, &kernel_.func)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return point_to_params(session);
}

// The driver reads as many parameters as the kernel has, each as long as it is there: so it, not
// the guest, is asked how many and how long they are.
CUresult NodeWork::point_to_params(Session& session) {
  const DriverTable& driver = *session.driver;
  const bool can_be_asked =
      driver.has(driver.cuFuncGetParamInfo) && driver.has(driver.cuKernelGetParamInfo);
  size_t off, bytes, end = 0;
  const auto find = [&](size_t i) {
    if (!can_be_asked) return CUDA_ERROR_NOT_SUPPORTED;
    return kernel_.func != nullptr ? driver.cuFuncGetParamInfo(kernel_.func, i, &off, &bytes)
                                   : driver.cuKernelGetParamInfo(kernel_.kern, i, &off, &bytes);
  };
  while (find(pointers_.size()) == CUDA_SUCCESS) {
    if (off > params_.size() || bytes > params_.size() - off) return CUDA_ERROR_INVALID_VALUE;
    pointers_.push_back(params_.data() + off);
    end = std::max(end, off + bytes);
  }
  param_bytes_ = params_.size();
  if (param_bytes_ > end) {
    // An older driver, or more than the kernel has: the driver takes the whole, whose size it
    // checks.
    extra_[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    extra_[1] = params_.data();
    extra_[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    extra_[3] = &param_bytes_;
    extra_[4] = CU_LAUNCH_PARAM_END;
    kernel_.extra = extra_;
    return CUDA_SUCCESS;
  }
  if (!pointers_.empty()) kernel_.kernelParams = pointers_.data();
  return CUDA_SUCCESS;
}

CUresult NodeWork::read_alloc(Session& session, const Task& task, std::span<const std::byte> rest) {
  const auto body = take<wire::MemAllocNode>(session, task, &rest);
  if (body.n_access > wire::MAX_MEM_ACCESS) session.violation(task);
  for (uint32_t i = 0; i < body.n_access; ++i) {
    const auto access = take<wire::MemAccess>(session, task, &rest);
    CUmemAccessDesc& each = access_.emplace_back();
    each.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(access.device)};
    each.flags = static_cast<CUmemAccess_flags>(access.flags);
  }
  alloc_.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  alloc_.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(body.device)};
  alloc_.poolProps.maxSize = body.max_bytes;
  alloc_.poolProps.usage = static_cast<unsigned short>(body.usage);
  alloc_.accessDescs = access_.empty() ? nullptr : access_.data();
  alloc_.accessDescCount = access_.size();
  alloc_.bytesize = body.bytes;
  return CUDA_SUCCESS;
}

CUresult NodeWork::read_batch(Session& session, const Task& task, std::span<const std::byte> rest) {
  const auto body = take<wire::BatchNode>(session, task, &rest);
  if (body.n > wire::MAX_STREAM_OPERATIONS) session.violation(task);
  for (uint32_t i = 0; i < body.n; ++i) {
    operations_.push_back(take<CUstreamBatchMemOpParams>(session, task, &rest));
    if (!is_allowed(session, operations_.back())) return CUDA_ERROR_INVALID_VALUE;
  }
  batch_.count = body.n;
  batch_.paramArray = operations_.data();
  batch_.flags = body.flags;
  return CUDA_SUCCESS;
}

CUresult NodeWork::read_conditional(Session& session, const Task& task,
                                    std::span<const std::byte> rest) {
  const auto body = take<wire::ConditionalNode>(session, task, &rest);
  if (body.n_bodies > wire::MAX_BODIES) session.violation(task);
  for (uint32_t i = 0; i < body.n_bodies; ++i) {
    bodies_.push_back(take<wire::Handle>(session, task, &rest));
  }
  conditional_.handle = body.handle;
  conditional_.type = static_cast<CUgraphConditionalNodeType>(body.type);
  conditional_.size = body.n_bodies;
  return session.conditions.has(body.handle, session.handles) ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
}

bool NodeWork::name_bodies(HandleTable& handles, wire::Handle node) const {
  for (size_t i = 0; i < bodies_.size(); ++i) {
    if (!handles.add(bodies_[i], conditional_.phGraph_out[i], node)) return false;
  }
  return true;
}

CUresult NodeWork::read(Session& session, const Task& task, uint32_t type,
                        std::span<const std::byte> rest) {
  type_ = static_cast<CUgraphNodeType>(type);
  switch (type_) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return read_kernel(session, task, rest);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return read_box(session, take<wire::MemcpyNode>(session, task, &rest), &memcpy_)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto body = take<wire::MemsetNode>(session, task, &rest);
      if (!may_set(session, body)) return CUDA_ERROR_INVALID_VALUE;
      memset_ = {body.dst,           body.pitch_bytes, body.value,
                 body.element_bytes, body.width,       body.height};
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      host_.fn = [](void* user) { relay(user, CUDA_SUCCESS); };
      host_.userData = reinterpret_cast<void*>(take<wire::HostNode>(session, task, &rest).function);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return session.handles.get(take<wire::ObjectNode>(session, task, &rest).object, &child_)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return session.handles.get(take<wire::ObjectNode>(session, task, &rest).object, &event_)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return read_batch(session, task, rest);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return read_conditional(session, task, rest);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return read_alloc(session, task, rest);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      freed_ = take<wire::MemFreeNode>(session, task, &rest).dptr;
      return session.is_guest_memory(freed_, 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult NodeWork::add_conditional(const DriverTable& driver, CUgraph graph,
                                   const std::vector<CUgraphNode>& after, CUcontext context,
                                   CUgraphNode* node) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional = conditional_;
  params.conditional.ctx = context;
  const CUresult result =
      driver.has(driver.cuGraphAddNode_v2)
          ? driver.cuGraphAddNode_v2(node, graph, after.data(), nullptr, after.size(), &params)
          : driver.cuGraphAddNode(node, graph, after.data(), after.size(), &params);
  conditional_ = params.conditional;
  return result;
}

CUresult NodeWork::add(const DriverTable& driver, CUgraph graph,
                       const std::vector<CUgraphNode>& after, CUcontext context,
                       CUgraphNode* node) {
  const CUgraphNode* const list = after.empty() ? nullptr : after.data();
  batch_.ctx = context;
  const size_t n = after.size();
  switch (type_) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return driver.cuGraphAddKernelNode_v2(node, graph, list, n, &kernel_);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return driver.cuGraphAddMemcpyNode(node, graph, list, n, &memcpy_, context);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return driver.cuGraphAddMemsetNode(node, graph, list, n, &memset_, context);
    case CU_GRAPH_NODE_TYPE_HOST:
      return driver.cuGraphAddHostNode(node, graph, list, n, &host_);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return driver.cuGraphAddChildGraphNode(node, graph, list, n, child_);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return driver.cuGraphAddEventWaitNode(node, graph, list, n, event_);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return driver.cuGraphAddEventRecordNode(node, graph, list, n, event_);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return driver.cuGraphAddBatchMemOpNode(node, graph, list, n, &batch_);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return driver.cuGraphAddMemAllocNode(node, graph, list, n, &alloc_);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return driver.cuGraphAddMemFreeNode(node, graph, list, n, freed_);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return add_conditional(driver, graph, after, context, node);
    default:
      return driver.cuGraphAddEmptyNode(node, graph, list, n);
  }
}

CUresult NodeWork::set(const DriverTable& driver, CUgraphNode node, CUcontext context) {
  batch_.ctx = context;
  switch (type_) {
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return driver.cuGraphBatchMemOpNodeSetParams(node, &batch_);
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return driver.cuGraphKernelNodeSetParams_v2(node, &kernel_);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return driver.cuGraphMemcpyNodeSetParams(node, &memcpy_);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return driver.cuGraphMemsetNodeSetParams(node, &memset_);
    case CU_GRAPH_NODE_TYPE_HOST:
      return driver.cuGraphHostNodeSetParams(node, &host_);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return driver.cuGraphEventWaitNodeSetEvent(node, event_);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return driver.cuGraphEventRecordNodeSetEvent(node, event_);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult NodeWork::set(const DriverTable& driver, CUgraphExec exec, CUgraphNode node,
                       CUcontext context) {
  batch_.ctx = context;
  switch (type_) {
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return driver.cuGraphExecBatchMemOpNodeSetParams(exec, node, &batch_);
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return driver.cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel_);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return driver.cuGraphExecMemcpyNodeSetParams(exec, node, &memcpy_, context);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return driver.cuGraphExecMemsetNodeSetParams(exec, node, &memset_, context);
    case CU_GRAPH_NODE_TYPE_HOST:
      return driver.cuGraphExecHostNodeSetParams(exec, node, &host_);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return driver.cuGraphExecChildGraphNodeSetParams(exec, node, child_);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return driver.cuGraphExecEventWaitNodeSetEvent(exec, node, event_);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return driver.cuGraphExecEventRecordNodeSetEvent(exec, node, event_);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace kvgpu::worker
