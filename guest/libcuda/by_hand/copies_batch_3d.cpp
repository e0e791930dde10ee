// SPDX-License-Identifier: Apache-2.0
// Batches of 3D copies. What may be copied in any order is copied one after another.
#include <vector>

#include "copies.h"
#include "generated/api.gen.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

struct Side {
  CUdeviceptr address;
  size_t pitch_bytes, height;

  uint64_t bytes(const CUextent3D& extent) const { return pitch_bytes * height * extent.depth; }
};

CUresult side_of(const CUmemcpy3DOperand& operand, const CUextent3D& extent, Side* side) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    return static_cast<CUresult>(refuse_part("a batch of copies to or from a CUDA array"));
  }
  const auto& p = operand.op.ptr;
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER || p.ptr == 0 ||
      (p.rowLength != 0 && p.rowLength < extent.width) ||
      (p.layerHeight != 0 && p.layerHeight < extent.height)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *side = {p.ptr, p.rowLength != 0 ? p.rowLength : extent.width,
           p.layerHeight != 0 ? p.layerHeight : extent.height};
  return CUDA_SUCCESS;
}

// A copy of a batch, and when its source may be read.
struct Piece {
  CUDA_MEMCPY3D copy{};
  CUmemcpySrcAccessOrder order;
  bool is_pageable;
};

CUresult describe(const CUDA_MEMCPY3D_BATCH_OP& op, Piece* piece) {
  const auto& [width, height, depth] = op.extent;
  if (width == 0 || height == 0 || depth == 0 ||
      op.srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
      op.srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
      (op.flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Side from{}, to{};
  if (const CUresult bad = side_of(op.src, op.extent, &from)) return bad;
  if (const CUresult bad = side_of(op.dst, op.extent, &to)) return bad;
  piece->order = op.srcAccessOrder;
  piece->is_pageable = operand(from.address, from.bytes(op.extent)).is_pageable();
  CUDA_MEMCPY3D& p = piece->copy;
  p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  p.srcDevice = from.address;
  p.srcPitch = from.pitch_bytes;
  p.srcHeight = from.height;
  p.dstDevice = to.address;
  p.dstPitch = to.pitch_bytes;
  p.dstHeight = to.height;
  p.WidthInBytes = width;
  p.Height = height;
  p.Depth = depth;
  return CUDA_SUCCESS;
}

CUresult copy(const Enqueue& enqueue, CUstream stream, const Piece& piece) {
  // Pageable memory is read by the call itself, which must not be earlier than the stream's turn.
  if (piece.order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && piece.is_pageable) {
    if (const CUresult bad = synchronize_stream(enqueue.stream())) return bad;
  }
  if (const CUresult bad = memcpy_3d_async_v2(&piece.copy, stream)) return bad;
  return piece.order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
             ? synchronize_stream(enqueue.stream())
             : CUDA_SUCCESS;
}

// All are checked before any is copied. `failed`: the one that was at fault.
CUresult copy_all(const CUDA_MEMCPY3D_BATCH_OP* ops, size_t n, uint64_t flags, CUstream stream,
                  size_t* failed) {
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_VALUE;  // as driver 580
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (ops == nullptr || n == 0 || n > SIZE_MAX / sizeof *ops || flags != 0 ||
      enqueue.stream().is_legacy()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (enqueue.capture() != nullptr) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // as driver 580, which leaves the capture whole
  }
  std::vector<Piece> pieces(n);
  for (*failed = 0; *failed < n; ++*failed) {
    if (const CUresult bad = describe(ops[*failed], &pieces[*failed])) return bad;
  }
  for (*failed = 0; *failed < n; ++*failed) {
    if (const CUresult bad = copy(enqueue, stream, pieces[*failed])) return bad;
  }
  *failed = SIZE_MAX;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult memcpy_3d_batch_async(size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx,
                               unsigned long long flags, CUstream hStream) {
  size_t failed = SIZE_MAX;
  const CUresult result = copy_all(opList, numOps, flags, hStream, &failed);
  if (failIdx != nullptr) *failIdx = failed;
  return result;
}

CUresult memcpy_3d_batch_async_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList,
                                  unsigned long long flags, CUstream hStream) {
  size_t failed = SIZE_MAX;
  return copy_all(opList, numOps, flags, hStream, &failed);
}

}  // namespace kvgpu::guest
