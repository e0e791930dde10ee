// SPDX-License-Identifier: Apache-2.0
// Batches of 1D copies. What may be copied in any order is copied one after another.
#include <cstring>

#include "copies.h"
#include "generated/api.gen.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

struct Batch {
  const CUdeviceptr *dsts, *srcs;
  const size_t* sizes;
  size_t count;
  const CUmemcpyAttributes* attributes;
  const size_t* first_of;  // attributes[k] is for the copies from first_of[k] on
  size_t n_attributes;
};

// cuda.h on cuMemcpyBatchAsync: the first attributes begin at copy 0, and none at an earlier one
// than those before.
bool is_complete(const Batch& batch) {
  const bool has_all = batch.dsts && batch.srcs && batch.sizes && batch.attributes;
  if (!has_all || batch.first_of == nullptr || batch.count == 0) return false;
  if (batch.n_attributes == 0 || batch.n_attributes > batch.count) return false;
  if (batch.first_of[0] != 0 || batch.first_of[batch.n_attributes - 1] >= batch.count) return false;
  for (size_t k = 1; k < batch.n_attributes; ++k) {
    if (batch.first_of[k] <= batch.first_of[k - 1]) return false;
  }
  return true;
}

bool is_valid(const CUmemcpyAttributes& attributes) {
  return attributes.srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
         attributes.srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
         (attributes.flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) == 0;
}

// A copy whose source is free for other use when the call returns.
CUresult copy_during_call(const Enqueue& enqueue, CUstream stream, CUdeviceptr dst, CUdeviceptr src,
                          size_t bytes) {
  const Operand to = operand(dst, bytes), from = operand(src, bytes);
  if (from.is_pageable() && to.is_device) return memcpy_async(dst, src, bytes, stream);
  if (!from.is_device && to.is_device) {
    ask_where_needed(enqueue, to, from);
    return stage_to_device(enqueue, to.gpu_address, reinterpret_cast<const std::byte*>(src), bytes);
  }
  if (const CUresult bad = memcpy_async(dst, src, bytes, stream)) return bad;
  return synchronize_stream(enqueue.stream());
}

CUresult copy(const Enqueue& enqueue, CUstream stream, CUmemcpySrcAccessOrder order,
              CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) {
    return copy_during_call(enqueue, stream, dst, src, bytes);
  }
  // Pageable memory is read by the call itself, which must not be earlier than the stream's turn.
  if (order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && operand(src, bytes).is_pageable()) {
    if (const CUresult bad = synchronize_stream(enqueue.stream())) return bad;
  }
  return memcpy_async(dst, src, bytes, stream);
}

// `failed`: the copy that was at fault; left alone where none was.
CUresult copy_all(const Batch& batch, CUstream stream, size_t* failed) {
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_VALUE;  // as driver 580
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (!is_complete(batch) || enqueue.stream().is_legacy()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t k = 0; k < batch.n_attributes; ++k) {
    if (is_valid(batch.attributes[k])) continue;
    *failed = batch.first_of[k];
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (enqueue.capture() != nullptr) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // as driver 580, which leaves the capture whole
  }
  for (size_t i = 0, k = 0; i < batch.count; ++i) {
    if (k + 1 < batch.n_attributes && batch.first_of[k + 1] == i) ++k;
    const CUmemcpySrcAccessOrder order = batch.attributes[k].srcAccessOrder;
    const CUresult result =
        copy(enqueue, stream, order, batch.dsts[i], batch.srcs[i], batch.sizes[i]);
    if (result == CUDA_SUCCESS) continue;
    *failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult memcpy_batch_async(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs,
                            size_t* failIdx, CUstream hStream) {
  size_t failed = SIZE_MAX;
  const Batch batch{dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs};
  const CUresult result = copy_all(batch, hStream, &failed);
  if (result != CUDA_SUCCESS && failIdx != nullptr) *failIdx = failed;
  return result;
}

CUresult memcpy_batch_async_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs,
                               CUstream hStream) {
  size_t failed = SIZE_MAX;
  return copy_all({dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs}, hStream, &failed);
}

}  // namespace kvgpu::guest
