// SPDX-License-Identifier: Apache-2.0
// Tensor maps. The driver reads and writes nothing where they point to: only kernels do.
#include <cstring>

#include "generated/handlers.gen.h"
#include "kvgpu/image_calls.h"

namespace kvgpu::worker {

namespace {

static_assert(sizeof(CUtensorMap) == sizeof(wire::TensorMap));

// A record's fields as the driver wants them.
struct Tensor {
  wire::TensorMapEncode body;
  CUtensorMap map{};  // as aligned as it must be

  void* address() const { return reinterpret_cast<void*>(body.address); }
  CUtensorMapDataType type() const { return static_cast<CUtensorMapDataType>(body.type); }
  CUtensorMapInterleave interleave() const {
    return static_cast<CUtensorMapInterleave>(body.interleave);
  }
  CUtensorMapSwizzle swizzle() const { return static_cast<CUtensorMapSwizzle>(body.swizzle); }
  CUtensorMapL2promotion promotion() const {
    return static_cast<CUtensorMapL2promotion>(body.promotion);
  }
  CUtensorMapFloatOOBfill fill() const { return static_cast<CUtensorMapFloatOOBfill>(body.fill); }
  CUtensorMapIm2ColWideMode mode() const {
    return static_cast<CUtensorMapIm2ColWideMode>(body.mode);
  }
};

CUresult answer(CUresult result, const CUtensorMap& map, ReplyWriter& reply) {
  if (result == CUDA_SUCCESS) reply.put(map);
  return result;
}

CUresult read(Session& session, const Task& task, Tensor* tensor) {
  if (!task.read(&tensor->body)) session.violation(task);
  if (const CUresult bad = session.enter(tensor->body.context)) return bad;
  // The driver must not read more of the lists than there is.
  return tensor->body.rank > wire::MAX_TENSOR_RANK ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUresult tensor_map_encode_tiled(Session& session, const Task& task, ReplyWriter& reply) {
  Tensor t;
  if (const CUresult bad = read(session, task, &t)) return bad;
  const CUresult result = session.driver->cuTensorMapEncodeTiled(
      &t.map, t.type(), t.body.rank, t.address(), t.body.dims, t.body.strides_bytes, t.body.box,
      t.body.steps, t.interleave(), t.swizzle(), t.promotion(), t.fill());
  return answer(result, t.map, reply);
}

CUresult tensor_map_encode_im2col(Session& session, const Task& task, ReplyWriter& reply) {
  Tensor t;
  if (const CUresult bad = read(session, task, &t)) return bad;
  const CUresult result = session.driver->cuTensorMapEncodeIm2col(
      &t.map, t.type(), t.body.rank, t.address(), t.body.dims, t.body.strides_bytes, t.body.lower,
      t.body.upper, t.body.n_channels, t.body.n_pixels, t.body.steps, t.interleave(), t.swizzle(),
      t.promotion(), t.fill());
  return answer(result, t.map, reply);
}

CUresult tensor_map_encode_im2col_wide(Session& session, const Task& task, ReplyWriter& reply) {
  Tensor t;
  if (const CUresult bad = read(session, task, &t)) return bad;
  const CUresult result = session.driver->cuTensorMapEncodeIm2colWide(
      &t.map, t.type(), t.body.rank, t.address(), t.body.dims, t.body.strides_bytes,
      t.body.lower[0], t.body.upper[0], t.body.n_channels, t.body.n_pixels, t.body.steps,
      t.interleave(), t.mode(), t.swizzle(), t.promotion(), t.fill());
  return answer(result, t.map, reply);
}

CUresult tensor_map_replace_address(Session& session, const Task& task, ReplyWriter& reply) {
  wire::TensorMapReplace body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUtensorMap map;
  std::memcpy(&map, &body.map, sizeof map);
  const CUresult result =
      session.driver->cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(body.address));
  return answer(result, map, reply);
}

}  // namespace kvgpu::worker
