// SPDX-License-Identifier: Apache-2.0
// Tensor maps. Their 128 bytes are NVIDIA's secret, and only devices of compute capability 9.0 and
// later have them: what is asked for is checked by CUDA's rules (CUDA 13.0, cuTensorMapEncodeTiled
// and the two beside it) and then refused.
#include <algorithm>

#include "api.h"

using namespace software_gpu;

namespace {

constexpr uint64_t MAX_DIM = 1ull << 32, MAX_STRIDE_BYTES = 1ull << 40;
constexpr unsigned MAX_RANK = 5, MAX_ELEMENT_STRIDE = 8, MAX_BOX = 256;
constexpr unsigned MAX_PIXELS = 1024, PACKED_BOX = 128;

/// What all three forms say.
struct Tensor {
  const CUtensorMap* map;
  CUtensorMapDataType type;
  unsigned rank;
  const void* address;
  const cuuint64_t* dims;
  const cuuint64_t* strides;
  const cuuint32_t* element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

/// 16 values in 8 or 12 bytes, spread over 16.
bool is_spread(CUtensorMapDataType type) {
  return type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B ||
         type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

unsigned element_bits(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 64;
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B:
      return 4;
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B:
    case CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B:
      return 8;  // in shared memory
    default:
      return 32;
  }
}

bool is_float(CUtensorMapDataType type) {
  return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

bool are_enums_valid(const Tensor& t) {
  return t.type >= 0 && t.type <= CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B && t.interleave >= 0 &&
         t.interleave <= CU_TENSOR_MAP_INTERLEAVE_32B && t.swizzle >= 0 &&
         t.swizzle <= CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B && t.promotion >= 0 &&
         t.promotion <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B && t.fill >= 0 &&
         t.fill <= CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
}

bool is_swizzle_valid(const Tensor& t) {
  if (t.interleave == CU_TENSOR_MAP_INTERLEAVE_32B && t.swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
    return false;
  if (!is_spread(t.type)) return true;
  if (t.type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B &&
      (t.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE))
    return false;
  return t.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || t.swizzle == CU_TENSOR_MAP_SWIZZLE_128B ||
         t.swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B ||
         (t.swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B &&
          t.type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B);
}

/// The bytes of a row of the box, which must lie within the span of the swizzle.
bool fits_swizzle(const Tensor& t, uint64_t n_elements) {
  if (t.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || t.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE)
    return true;
  const uint64_t span = t.swizzle == CU_TENSOR_MAP_SWIZZLE_32B   ? 32
                        : t.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                 : 128;
  return n_elements * element_bits(t.type) / 8 <= span;
}

bool is_valid(const Tensor& t, unsigned min_rank) {
  if (!t.map || !t.dims || !t.element_strides || !t.strides || !are_enums_valid(t)) return false;
  const bool wide = t.interleave == CU_TENSOR_MAP_INTERLEAVE_32B || is_spread(t.type);
  const uint64_t align = wide ? 32 : 16;
  if (t.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) min_rank = std::max(min_rank, 3u);
  if (t.rank < min_rank || t.rank > MAX_RANK) return false;
  if (reinterpret_cast<uintptr_t>(t.address) % align != 0) return false;
  for (unsigned i = 0; i < t.rank; ++i) {
    if (t.dims[i] == 0 || t.dims[i] > MAX_DIM) return false;
    const bool counts = i > 0 || t.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
    if (counts && (t.element_strides[i] == 0 || t.element_strides[i] > MAX_ELEMENT_STRIDE))
      return false;
  }
  for (unsigned i = 0; i + 1 < t.rank; ++i)
    if (t.strides[i] % align != 0 || t.strides[i] >= MAX_STRIDE_BYTES) return false;
  if (is_spread(t.type) && t.dims[0] % PACKED_BOX != 0) return false;
  if (t.type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B && t.dims[0] % 2 != 0) return false;
  if (t.fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !is_float(t.type)) return false;
  return is_swizzle_valid(t);
}

bool is_column_valid(const Tensor& t, unsigned n_channels, unsigned n_pixels) {
  return n_channels <= MAX_BOX && n_pixels <= MAX_PIXELS && fits_swizzle(t, n_channels) &&
         (!is_spread(t.type) || n_channels == PACKED_BOX);
}

/// CUDA's limits of the box's corners, by how many there are.
bool are_corners_valid(unsigned rank, const int* lower, const int* upper) {
  if (!lower || !upper) return false;
  const int limit = rank == 3 ? 32768 : rank == 4 ? 128 : 16;
  for (unsigned i = 0; i < rank - 2; ++i)
    for (const int corner : {lower[i], upper[i]})
      if (corner < -limit || corner >= limit) return false;
  return true;
}

CUresult answer(bool valid) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  return valid ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

SOFTWARE_GPU_API cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const Tensor t{map,        type,    rank,      address, dims, strides, element_strides,
                 interleave, swizzle, promotion, fill};
  if (!is_valid(t, 1) || !box) return answer(false);
  const auto is_box_valid = [](cuuint32_t n) { return n != 0 && n <= MAX_BOX; };
  const bool is_whole = interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
                        uint64_t{box[0]} * element_bits(type) / 8 % 16 == 0;
  return answer(std::all_of(box, box + rank, is_box_valid) && is_whole && fits_swizzle(t, box[0]) &&
                (!is_spread(type) || box[0] == PACKED_BOX));
}

SOFTWARE_GPU_API cuTensorMapEncodeIm2col(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dims, const cuuint64_t* strides, const int* lower, const int* upper,
    cuuint32_t n_channels, cuuint32_t n_pixels, const cuuint32_t* element_strides,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill) {
  const Tensor t{map,        type,    rank,      address, dims, strides, element_strides,
                 interleave, swizzle, promotion, fill};
  return answer(is_valid(t, 3) && are_corners_valid(rank, lower, upper) &&
                is_column_valid(t, n_channels, n_pixels));
}

SOFTWARE_GPU_API cuTensorMapEncodeIm2colWide(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dims, const cuuint64_t* strides, int lower, int upper, cuuint32_t n_channels,
    cuuint32_t n_pixels, const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
    CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill) {
  const Tensor t{map,        type,    rank,      address, dims, strides, element_strides,
                 interleave, swizzle, promotion, fill};
  const bool is_mode_valid =
      mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W || mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128;
  const bool is_swizzle_taken = swizzle == CU_TENSOR_MAP_SWIZZLE_64B ||
                                swizzle == CU_TENSOR_MAP_SWIZZLE_128B ||
                                swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B;
  const unsigned n_counted = mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128 ? 0 : n_pixels;
  return answer(is_mode_valid && is_swizzle_taken && is_valid(t, 3) &&
                are_corners_valid(3, &lower, &upper) && is_column_valid(t, n_channels, n_counted));
}

SOFTWARE_GPU_API cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return answer(map && address && reinterpret_cast<uintptr_t>(address) % 16 == 0);
}
