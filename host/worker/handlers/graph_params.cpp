// SPDX-License-Identifier: Apache-2.0
// What the driver says of a node, in the guest's terms.
#include <cstring>

#include "copy_box.h"
#include "graph_nodes.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

namespace {

// The guest's handle of a kernel. A launch of a library's kernel may come back as the function that
// the driver has made of it for the context.
wire::Handle handle_of(Session& session, CUfunction function, CUkernel kernel) {
  if (kernel != nullptr) {
    if (const wire::Handle found = session.handles.handle_of(kernel)) return found;
  }
  if (function == nullptr) return 0;
  if (const wire::Handle found = session.handles.handle_of(function)) return found;
  for (const auto& [handle, each] : session.handles.kernels()) {
    CUfunction own = nullptr;
    const bool known = session.driver->cuKernelGetFunction(&own, each) == CUDA_SUCCESS;
    if (known && own == function) return handle;
  }
  return 0;
}

// As one buffer, laid out as the kernel wants it.
CUresult gather(const DriverTable& driver, const CUDA_KERNEL_NODE_PARAMS& p,
                std::vector<std::byte>* bytes) {
  bytes->clear();
  if (p.kernelParams != nullptr) {
    size_t off, n;
    const auto find = [&](size_t i) {
      return p.func != nullptr ? driver.cuFuncGetParamInfo(p.func, i, &off, &n)
                               : driver.cuKernelGetParamInfo(p.kern, i, &off, &n);
    };
    for (size_t i = 0; find(i) == CUDA_SUCCESS; ++i) {
      if (off + n > wire::MAX_PARAM_BYTES) return CUDA_ERROR_INVALID_VALUE;
      if (off + n > bytes->size()) bytes->resize(off + n);
      std::memcpy(bytes->data() + off, p.kernelParams[i], n);
    }
    return CUDA_SUCCESS;
  }
  const std::byte* data = nullptr;
  size_t n = 0;
  for (void** at = p.extra; at != nullptr && *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) data = static_cast<const std::byte*>(at[1]);
    if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) n = *static_cast<const size_t*>(at[1]);
  }
  if (n > wire::MAX_PARAM_BYTES) return CUDA_ERROR_INVALID_VALUE;
  if (data != nullptr) bytes->assign(data, data + n);
  return CUDA_SUCCESS;
}

CUresult describe_kernel(Session& session, const Task& task, const wire::GraphNodeParams& body,
                         CUgraphNode node, ReplyWriter& reply) {
  constexpr size_t MAX_INLINE_BYTES = 12 * 1024;
  CUDA_KERNEL_NODE_PARAMS p{};
  if (const CUresult bad = session.driver->cuGraphKernelNodeGetParams_v2(node, &p)) return bad;
  std::vector<std::byte> params;
  if (const CUresult bad = gather(*session.driver, p, &params)) return bad;
  wire::KernelNode out{handle_of(session, p.func, p.kern),
                       {p.gridDimX, p.gridDimY, p.gridDimZ},
                       {p.blockDimX, p.blockDimY, p.blockDimZ},
                       p.sharedMemBytes,
                       static_cast<uint32_t>(params.size()),
                       wire::PARAMS_IN_RECORD,
                       0};
  if (out.function == 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (p.func != nullptr) out.named |= wire::NAMED_FUNCTION;
  if (p.kern != nullptr) out.named |= wire::NAMED_KERNEL;
  if (p.ctx != nullptr) out.named |= wire::NAMED_CONTEXT;
  if (params.size() > MAX_INLINE_BYTES) {
    out.params_in = wire::PARAMS_IN_SLAB;
    if (body.slab_off > SLAB_BYTES || body.slab_bytes > SLAB_BYTES - body.slab_off) {
      session.violation(task);
    }
    // Without room the guest learns how much it takes.
    if (body.slab_bytes >= params.size()) {
      std::memcpy(session.slab() + body.slab_off, params.data(), params.size());
    }
    params.clear();
  }
  reply.put(out);
  reply.put_bytes(params.data(), params.size());
  return CUDA_SUCCESS;
}

CUresult describe_batch(Session& session, CUgraphNode node, ReplyWriter& reply) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS p{};
  if (const CUresult bad = session.driver->cuGraphBatchMemOpNodeGetParams(node, &p)) return bad;
  if (p.count > wire::MAX_STREAM_OPERATIONS) return CUDA_ERROR_NOT_SUPPORTED;
  reply.put(wire::BatchNode{session.handles.handle_of(p.ctx), p.count, p.flags});
  reply.put_bytes(p.paramArray, p.count * sizeof *p.paramArray);
  return CUDA_SUCCESS;
}

CUresult describe_alloc(Session& session, CUgraphNode node, ReplyWriter& reply) {
  CUDA_MEM_ALLOC_NODE_PARAMS p{};
  if (const CUresult bad = session.driver->cuGraphMemAllocNodeGetParams(node, &p)) return bad;
  if (p.accessDescCount > wire::MAX_MEM_ACCESS) return CUDA_ERROR_NOT_SUPPORTED;
  reply.put(wire::MemAllocFound{
      {p.bytesize, p.poolProps.maxSize, static_cast<uint32_t>(p.poolProps.location.id),
       p.poolProps.usage, static_cast<uint32_t>(p.accessDescCount), 0},
      p.dptr});
  for (size_t i = 0; i < p.accessDescCount; ++i) {
    const CUmemAccessDesc& access = p.accessDescs[i];
    reply.put(wire::MemAccess{static_cast<uint32_t>(access.location.id),
                              static_cast<uint32_t>(access.flags)});
  }
  return CUDA_SUCCESS;
}

CUresult describe_memcpy(Session& session, CUgraphNode node, ReplyWriter& reply) {
  CUDA_MEMCPY3D p{};
  if (const CUresult bad = session.driver->cuGraphMemcpyNodeGetParams(node, &p)) return bad;
  reply.put(describe_box(session, p));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult describe_node(Session& session, const Task& task, const wire::GraphNodeParams& body,
                       ReplyWriter& reply) {
  CUgraphNode node;
  if (!session.handles.get(body.node, &node)) return CUDA_ERROR_INVALID_VALUE;
  const DriverTable& driver = *session.driver;
  CUgraphNodeType type;
  if (const CUresult bad = driver.cuGraphNodeGetType(node, &type)) return bad;
  if (static_cast<uint32_t>(type) != body.type) return CUDA_ERROR_INVALID_VALUE;
  reply.put(wire::GraphNodeFound{session.handles.owner_of(body.node)});
  CUevent event = nullptr;
  CUresult result;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return describe_kernel(session, task, body, node, reply);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return describe_memcpy(session, node, reply);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS p{};
      result = driver.cuGraphMemsetNodeGetParams(node, &p);
      reply.put(wire::MemsetNode{p.dst, p.pitch, p.value, p.elementSize, p.width, p.height});
      return result;
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      CUDA_HOST_NODE_PARAMS p{};
      result = driver.cuGraphHostNodeGetParams(node, &p);
      reply.put(wire::HostNode{reinterpret_cast<uint64_t>(p.userData)});
      return result;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return describe_batch(session, node, reply);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return describe_alloc(session, node, reply);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: {
      CUdeviceptr dptr = 0;
      result = driver.cuGraphMemFreeNodeGetParams(node, &dptr);
      reply.put(wire::MemFreeNode{dptr});
      return result;
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      result = driver.cuGraphEventWaitNodeGetEvent(node, &event);
      reply.put(wire::ObjectNode{session.handles.handle_of(event)});
      return result;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      result = driver.cuGraphEventRecordNodeGetEvent(node, &event);
      reply.put(wire::ObjectNode{session.handles.handle_of(event)});
      return result;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace kvgpu::worker
