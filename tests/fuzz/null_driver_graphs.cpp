// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs: what their structs name is the guest's own.
#include "null_driver_graphs.h"

#include "null_driver_by_type.h"

namespace kvgpu::fuzz {

namespace {

void check_side(const char* what, const CUDA_MEMCPY3D& p, uint64_t base, uint64_t x, uint64_t y,
                uint64_t z, uint64_t pitch, uint64_t height) {
  if (p.WidthInBytes == 0 || p.Height == 0 || p.Depth == 0) return;
  // What these stand for is the driver's to decide.
  if (pitch == 0 || height == 0) breach("a pitch or height of 0", pitch, height);
  const uint64_t first = (z * height + y) * pitch + x;
  const uint64_t last = ((z + p.Depth - 1) * height + y + p.Height - 1) * pitch + x;
  null_driver().check_memory(what, base + first, last - first + p.WidthInBytes);
}

void check(const CUDA_MEMCPY3D* p) {
  const auto check_either = [&](const char* what, CUmemorytype type, const void* host,
                                CUdeviceptr device, CUarray array, size_t x_bytes, size_t y,
                                size_t z, size_t pitch_bytes, size_t height) {
    if (type == CU_MEMORYTYPE_ARRAY) return accept(array);
    const bool is_host = type == CU_MEMORYTYPE_HOST;
    const uint64_t address = is_host ? reinterpret_cast<uint64_t>(host) : uint64_t{device};
    check_side(what, *p, address, x_bytes, y, z, pitch_bytes, height);
  };
  check_either("read by a copy", p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray,
               p->srcXInBytes, p->srcY, p->srcZ, p->srcPitch, p->srcHeight);
  check_either("written by a copy", p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray,
               p->dstXInBytes, p->dstY, p->dstZ, p->dstPitch, p->dstHeight);
}

CUresult copy_3d(const CUDA_MEMCPY3D* p, CUstream stream) {
  if (const CUresult bad = null_driver().begin("cuMemcpy3DAsync_v2")) return bad;
  accept(stream);
  check(p);
  return CUDA_SUCCESS;
}

void check(const CUDA_MEMSET_NODE_PARAMS* p) {
  if (p->width == 0 || p->height == 0) return;
  null_driver().check_memory("set by a node", p->dst,
                             p->pitch * (p->height - 1) + p->width * p->elementSize);
}

void check(const CUDA_KERNEL_NODE_PARAMS* p) {
  if (p->func != nullptr) accept(p->func);
  if (p->kern != nullptr) accept(p->kern);
}

void check(const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  accept(p->ctx);
  for (unsigned i = 0; i < p->count; ++i) {
    const CUstreamBatchMemOpType operation = p->paramArray[i].operation;
    const bool has_address =
        operation != CU_STREAM_MEM_OP_BARRIER && operation != CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    if (has_address) null_driver().check_memory("in a node", p->paramArray[i].waitValue.address, 4);
  }
}

template <typename Params, typename... Context>
CUresult add(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n, Params params,
             Context...) {
  if (const CUresult bad = null_driver().begin("cuGraphAddNode")) return bad;
  accept(graph);
  for (size_t i = 0; i < n; ++i) accept(after[i]);
  check(params);
  accept(node);
  return CUDA_SUCCESS;
}

template <typename Params>
CUresult set(CUgraphNode node, Params params) {
  if (const CUresult bad = null_driver().begin("cuGraphNodeSetParams")) return bad;
  accept(node);
  check(params);
  return CUDA_SUCCESS;
}

template <typename Params, typename... Context>
CUresult set_exec(CUgraphExec exec, CUgraphNode node, Params params, Context...) {
  if (const CUresult bad = null_driver().begin("cuGraphExecNodeSetParams")) return bad;
  accept(exec);
  accept(node);
  check(params);
  return CUDA_SUCCESS;
}

CUresult add_alloc(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                   CUDA_MEM_ALLOC_NODE_PARAMS* p) {
  if (const CUresult bad = null_driver().begin("cuGraphAddMemAllocNode")) return bad;
  accept(graph);
  for (size_t i = 0; i < n; ++i) accept(after[i]);
  read_bytes(p->accessDescs, p->accessDescCount * sizeof *p->accessDescs);
  uint64_t address = 0;
  const CUresult result = null_driver().allocate_for_graph(&address, p->bytesize);
  if (result != CUDA_SUCCESS) return result;
  p->dptr = address;
  accept(node);
  return CUDA_SUCCESS;
}

CUresult is_capturing(CUstream stream, CUstreamCaptureStatus* status) {
  if (const CUresult bad = null_driver().begin("cuStreamIsCapturing")) return bad;
  accept(stream);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t*, CUgraph* graph,
                      const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* n) {
  if (const CUresult bad = null_driver().begin("cuStreamGetCaptureInfo_v3")) return bad;
  accept(stream);
  accept(graph);
  static CUgraphNode node;
  accept(&node);
  *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  *nodes = &node;
  *edges = nullptr;
  *n = 1;
  return CUDA_SUCCESS;
}

}  // namespace

void fill_graphs(worker::DriverTable* t) {
  t->cuMemcpy3DAsync_v2 = copy_3d;
  t->cuStreamGetCaptureInfo_v3 = capture_info;
  t->cuStreamIsCapturing = is_capturing;
  t->cuGraphAddMemAllocNode = add_alloc;
  t->cuGraphAddKernelNode_v2 = add;
  t->cuGraphAddMemcpyNode = add;
  t->cuGraphAddBatchMemOpNode = add;
  t->cuGraphBatchMemOpNodeSetParams = set;
  t->cuGraphExecBatchMemOpNodeSetParams = set_exec;
  t->cuGraphAddMemsetNode = add;
  t->cuGraphKernelNodeSetParams_v2 = set;
  t->cuGraphMemcpyNodeSetParams = set;
  t->cuGraphMemsetNodeSetParams = set;
  t->cuGraphExecKernelNodeSetParams_v2 = set_exec;
  t->cuGraphExecMemcpyNodeSetParams = set_exec;
  t->cuGraphExecMemsetNodeSetParams = set_exec;
}

}  // namespace kvgpu::fuzz
