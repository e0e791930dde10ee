// SPDX-License-Identifier: Apache-2.0
// Copies between contexts, and batches of copies in three dimensions.
#include <vector>

#include "api.h"
#include "context_captures.h"

using namespace software_gpu;

namespace {

CUDA_MEMCPY3D linear(CUdeviceptr to, CUdeviceptr from, size_t n_bytes) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to;
  copy.srcDevice = from;
  copy.WidthInBytes = n_bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

CUDA_MEMCPY3D without_contexts(const CUDA_MEMCPY3D_PEER& p) {
  CUDA_MEMCPY3D copy{};
  copy.srcXInBytes = p.srcXInBytes;
  copy.srcY = p.srcY;
  copy.srcZ = p.srcZ;
  copy.srcLOD = p.srcLOD;
  copy.srcMemoryType = p.srcMemoryType;
  copy.srcHost = p.srcHost;
  copy.srcDevice = p.srcDevice;
  copy.srcArray = p.srcArray;
  copy.srcPitch = p.srcPitch;
  copy.srcHeight = p.srcHeight;
  copy.dstXInBytes = p.dstXInBytes;
  copy.dstY = p.dstY;
  copy.dstZ = p.dstZ;
  copy.dstLOD = p.dstLOD;
  copy.dstMemoryType = p.dstMemoryType;
  copy.dstHost = p.dstHost;
  copy.dstDevice = p.dstDevice;
  copy.dstArray = p.dstArray;
  copy.dstPitch = p.dstPitch;
  copy.dstHeight = p.dstHeight;
  copy.WidthInBytes = p.WidthInBytes;
  copy.Height = p.Height;
  copy.Depth = p.Depth;
  return copy;
}

/// Pageable memory may change or go as soon as the call returns.
bool is_pageable(const AllMemory& memory, CUmemorytype type, const void* host, CUdeviceptr device) {
  if (type == CU_MEMORYTYPE_HOST) return !memory.is_known(reinterpret_cast<uint64_t>(host));
  return type == CU_MEMORYTYPE_UNIFIED && !memory.is_known(device);
}

bool has_pageable(Context& context, const CUDA_MEMCPY3D& p) {
  const AllMemory memory(context.device);
  return is_pageable(memory, p.srcMemoryType, p.srcHost, p.srcDevice) ||
         is_pageable(memory, p.dstMemoryType, p.dstHost, p.dstDevice);
}

CUresult copy_async(const CUDA_MEMCPY3D& copy, CUcontext to, CUcontext from, CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  Operation operation;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  if (!context_of(to) || !context_of(from)) return CUDA_ERROR_INVALID_CONTEXT;
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return CUDA_SUCCESS;
  RETURN_IF_FAILED(make_copy(*context, copy, &operation));
  return has_pageable(*context, copy) ? submit_and_wait(*context, *stream, std::move(operation))
                                      : context->submit(*stream, std::move(operation));
}

/// In order with all work of the three contexts.
CUresult copy_sync(const CUDA_MEMCPY3D& copy, CUcontext to, CUcontext from) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_to_enqueue(*context, CU_STREAM_LEGACY, &stream));
  for (const CUcontext handle : {to, from}) {
    Context* other = context_of(handle);
    if (!other) return CUDA_ERROR_INVALID_CONTEXT;
    if (other != context) other->drain();
  }
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return CUDA_SUCCESS;
  Operation operation;
  RETURN_IF_FAILED(make_copy(*context, copy, &operation));
  return submit_and_wait(*context, *stream, std::move(operation));
}

/// An operand of a batch as one side of a copy.
struct PeerSide {
  CUdeviceptr address;
  size_t pitch_bytes, height;
};

CUresult side_of(const CUmemcpy3DOperand& operand, const CUextent3D& extent, PeerSide* side) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
  const auto& p = operand.op.ptr;
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER || p.ptr == 0 ||
      (p.rowLength != 0 && p.rowLength < extent.width) ||
      (p.layerHeight != 0 && p.layerHeight < extent.height))
    return CUDA_ERROR_INVALID_VALUE;
  *side = {p.ptr, p.rowLength ? p.rowLength : extent.width,
           p.layerHeight ? p.layerHeight : extent.height};
  return CUDA_SUCCESS;
}

CUresult describe(const CUDA_MEMCPY3D_BATCH_OP& op, CUDA_MEMCPY3D* copy) {
  PeerSide to, from;
  if (op.extent.width == 0 || op.extent.height == 0 || op.extent.depth == 0 ||
      op.srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
      op.srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
      (op.flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}))
    return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(side_of(op.src, op.extent, &from));
  RETURN_IF_FAILED(side_of(op.dst, op.extent, &to));
  *copy = {};
  copy->srcMemoryType = copy->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy->srcDevice = from.address;
  copy->srcPitch = from.pitch_bytes;
  copy->srcHeight = from.height;
  copy->dstDevice = to.address;
  copy->dstPitch = to.pitch_bytes;
  copy->dstHeight = to.height;
  copy->WidthInBytes = op.extent.width;
  copy->Height = op.extent.height;
  copy->Depth = op.extent.depth;
  return CUDA_SUCCESS;
}

/// All are checked before any is enqueued. `failed`: the index of the first that is wrong.
CUresult copy_batch(size_t n, const CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags,
                    CUstream handle, size_t* failed) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!ops || n == 0 || flags != 0 || handle == nullptr || handle == CU_STREAM_LEGACY)
    return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  std::vector<Operation> operations(n);
  bool waits = false;
  for (size_t i = 0; i < n; ++i) {
    *failed = i;
    CUDA_MEMCPY3D copy;
    RETURN_IF_FAILED(describe(ops[i], &copy));
    RETURN_IF_FAILED(make_copy(*context, copy, &operations[i]));
    waits |= ops[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
             has_pageable(*context, copy);
  }
  *failed = SIZE_MAX;
  for (Operation& operation : operations)
    RETURN_IF_FAILED(context->submit(*stream, std::move(operation)));
  return waits ? submit_and_wait(
                     *context, *stream,
                     {CU_GRAPH_NODE_TYPE_EMPTY, [](Context&) { return CUDA_SUCCESS; }, nullptr})
               : CUDA_SUCCESS;
}

}  // namespace

SOFTWARE_GPU_API cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                              CUcontext from_context, size_t n) {
  return copy_sync(linear(to, from, n), to_context, from_context);
}
SOFTWARE_GPU_API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                   CUcontext from_context, size_t n, CUstream stream) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> found;
  RETURN_IF_FAILED(find_stream(*context, stream, &found));
  RETURN_IF_FAILED(refuse_question(*context, *found));  // as on driver 580
  return copy_async(linear(to, from, n), to_context, from_context, stream);
}
SOFTWARE_GPU_API cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return copy_sync(without_contexts(*p), p->dstContext, p->srcContext);
}
SOFTWARE_GPU_API cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* p, CUstream stream) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return copy_async(without_contexts(*p), p->dstContext, p->srcContext, stream);
}

SOFTWARE_GPU_API cuMemcpy3DBatchAsync_v2(size_t n, CUDA_MEMCPY3D_BATCH_OP* ops,
                                         unsigned long long flags, CUstream stream) {
  size_t failed = SIZE_MAX;
  return copy_batch(n, ops, flags, stream, &failed);
}
#undef cuMemcpy3DBatchAsync
SOFTWARE_GPU_API cuMemcpy3DBatchAsync(size_t n, CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed,
                                      unsigned long long flags, CUstream stream) {
  size_t unused = SIZE_MAX;
  if (failed) *failed = SIZE_MAX;
  return copy_batch(n, ops, flags, stream, failed ? failed : &unused);
}
