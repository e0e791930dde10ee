// SPDX-License-Identifier: Apache-2.0
// Tensor maps: the driver writes their 128 bytes, which belong to the program from then on. Driver
// 580 does not mind where they lie.
#include <algorithm>
#include <cstring>

#include "call.h"
#include "generated/api.gen.h"

namespace kvgpu::guest {

namespace {

static_assert(sizeof(CUtensorMap) == sizeof(wire::TensorMap));

// The first n of a list, and whether there is one.
template <typename T, size_t MAX>
bool take(T (&to)[MAX], const T* from, size_t n) {
  if (from == nullptr) return false;
  std::copy_n(from, std::min(n, MAX), to);
  return true;
}

// What all forms say; false: a list is missing.
bool describe(wire::TensorMapEncode& body, CUtensorMapDataType type, cuuint32_t rank, void* address,
              const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* steps) {
  body = {};
  body.address = reinterpret_cast<uint64_t>(address);
  body.type = static_cast<uint32_t>(type);
  body.rank = rank;
  return take(body.dims, dims, rank) &&
         take(body.strides_bytes, strides, rank == 0 ? 0 : rank - 1) &&
         take(body.steps, steps, rank);
}

CUresult encode(CUtensorMap* map, wire::Op op, wire::TensorMapEncode& body, bool is_whole,
                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (map == nullptr || !is_whole) return CUDA_ERROR_INVALID_VALUE;
  body.context = call.context();
  body.interleave = static_cast<uint32_t>(interleave);
  body.swizzle = static_cast<uint32_t>(swizzle);
  body.promotion = static_cast<uint32_t>(promotion);
  body.fill = static_cast<uint32_t>(fill);
  wire::TensorMap out;
  const CUresult result = call.sync(op, body, &out);
  if (result == CUDA_SUCCESS) std::memcpy(map, &out, sizeof out);
  return result;
}

}  // namespace

CUresult tensor_map_encode_tiled(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                 cuuint32_t tensorRank, void* globalAddress,
                                 const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                 const cuuint32_t* boxDim, const cuuint32_t* elementStrides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion l2Promotion,
                                 CUtensorMapFloatOOBfill oobFill) {
  wire::TensorMapEncode body;
  bool is_whole = describe(body, tensorDataType, tensorRank, globalAddress, globalDim,
                           globalStrides, elementStrides);
  is_whole &= take(body.box, boxDim, tensorRank);
  return encode(tensorMap, wire::Op::cuTensorMapEncodeTiled, body, is_whole, interleave, swizzle,
                l2Promotion, oobFill);
}

CUresult tensor_map_encode_im2col(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                  cuuint32_t tensorRank, void* globalAddress,
                                  const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                  const int* pixelBoxLowerCorner, const int* pixelBoxUpperCorner,
                                  cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                  const cuuint32_t* elementStrides,
                                  CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                  CUtensorMapL2promotion l2Promotion,
                                  CUtensorMapFloatOOBfill oobFill) {
  wire::TensorMapEncode body;
  bool is_whole = describe(body, tensorDataType, tensorRank, globalAddress, globalDim,
                           globalStrides, elementStrides);
  const size_t n_corners = tensorRank < 2 ? 0 : tensorRank - 2;
  is_whole &= take(body.lower, pixelBoxLowerCorner, n_corners);
  is_whole &= take(body.upper, pixelBoxUpperCorner, n_corners);
  body.n_channels = channelsPerPixel;
  body.n_pixels = pixelsPerColumn;
  return encode(tensorMap, wire::Op::cuTensorMapEncodeIm2col, body, is_whole, interleave, swizzle,
                l2Promotion, oobFill);
}

CUresult tensor_map_encode_im2col_wide(
    CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void* globalAddress, const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
    int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
    cuuint32_t pixelsPerColumn, const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill) {
  wire::TensorMapEncode body;
  bool is_whole = describe(body, tensorDataType, tensorRank, globalAddress, globalDim,
                           globalStrides, elementStrides);
  body.lower[0] = pixelBoxLowerCornerWidth;
  body.upper[0] = pixelBoxUpperCornerWidth;
  body.n_channels = channelsPerPixel;
  body.n_pixels = pixelsPerColumn;
  body.mode = static_cast<uint32_t>(mode);
  return encode(tensorMap, wire::Op::cuTensorMapEncodeIm2colWide, body, is_whole, interleave,
                swizzle, l2Promotion, oobFill);
}

CUresult tensor_map_replace_address(CUtensorMap* tensorMap, void* globalAddress) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (tensorMap == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::TensorMapReplace body{call.context(), reinterpret_cast<uint64_t>(globalAddress), {}};
  std::memcpy(&body.map, tensorMap, sizeof body.map);
  wire::TensorMap out;
  const CUresult result = call.sync(wire::Op::cuTensorMapReplaceAddress, body, &out);
  if (result == CUDA_SUCCESS) std::memcpy(tensorMap, &out, sizeof out);
  return result;
}

}  // namespace kvgpu::guest
