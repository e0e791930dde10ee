// SPDX-License-Identifier: Apache-2.0
// Tensor maps: CUDA's rules for what they describe.
#include "support.h"

namespace {

// A map of 64 by 32 floats; each case makes one thing of it wrong.
struct Tiled {
  CUtensorMap map{};
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  cuuint32_t rank = 2;
  uintptr_t address;
  cuuint64_t dims[5] = {64, 32, 1, 1, 1}, strides[4] = {256, 8192, 8192, 8192};
  cuuint32_t box[5] = {32, 8, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  explicit Tiled(CUdeviceptr dptr) : address(dptr) {}
  CUresult encode() {
    return cuTensorMapEncodeTiled(&map, type, rank, reinterpret_cast<void*>(address), dims, strides,
                                  box, steps, interleave, swizzle,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, fill);
  }
};

CUresult with(CUdeviceptr dptr, const std::function<void(Tiled&)>& change) {
  Tiled tiled(dptr);
  change(tiled);
  return tiled.encode();
}

bool has_tensor_maps(const Gpu& gpu) {
  int major = 0;
  CU(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu.device));
  return major >= 9;
}

}  // namespace

TEST_CASE("tensor map: made where there are such, and what it must not describe") {
  const Gpu gpu;
  const Ints data(64 * 32);
  Tiled good(data.dptr);
  CHECK((good.encode() == CUDA_SUCCESS) == has_tensor_maps(gpu));
  const auto is_bad = [&](const std::function<void(Tiled&)>& change) {
    CU_IS(with(data.dptr, change), CUDA_ERROR_INVALID_VALUE);
  };
  is_bad([](Tiled& t) { t.address += 4; });
  is_bad([](Tiled& t) { t.rank = 0; });
  is_bad([](Tiled& t) { t.rank = 6; });
  is_bad([](Tiled& t) { t.dims[1] = 0; });
  is_bad([](Tiled& t) { t.strides[0] = 260; });
  is_bad([](Tiled& t) { t.strides[0] = 1ull << 40; });
  is_bad([](Tiled& t) { t.box[1] = 0; });
  is_bad([](Tiled& t) { t.box[1] = 257; });
  is_bad([](Tiled& t) { t.box[0] = 2; });   // 8 bytes
  is_bad([](Tiled& t) { t.box[0] = 64; });  // beyond the span of the swizzle
  is_bad([](Tiled& t) { t.steps[1] = 9; });
  is_bad([](Tiled& t) { t.interleave = CU_TENSOR_MAP_INTERLEAVE_16B; });  // of two dimensions
  is_bad([](Tiled& t) {
    t.type = CU_TENSOR_MAP_DATA_TYPE_INT32;
    t.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  });
}

TEST_CASE("tensor map: of pixels around each pixel; another address") {
  const Gpu gpu;
  const Ints data(64 * 32);
  alignas(128) CUtensorMap map{};
  const cuuint64_t dims[] = {32, 8, 8}, strides[] = {128, 1024};
  const cuuint32_t steps[] = {1, 1, 1};
  const int lower[] = {-1}, upper[] = {-1}, too_far[] = {-32769};
  const auto encode = [&](cuuint32_t rank, const int* from, cuuint32_t channels,
                          cuuint32_t pixels) {
    return cuTensorMapEncodeIm2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, rank,
                                   reinterpret_cast<void*>(data.dptr), dims, strides, from, upper,
                                   channels, pixels, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CHECK((encode(3, lower, 32, 8) == CUDA_SUCCESS) == has_tensor_maps(gpu));
  if (has_tensor_maps(gpu))
    CU(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(data.dptr + 128)));
  CU_IS(encode(2, lower, 32, 8), CUDA_ERROR_INVALID_VALUE);
  CU_IS(encode(3, too_far, 32, 8), CUDA_ERROR_INVALID_VALUE);
  CU_IS(encode(3, lower, 257, 8), CUDA_ERROR_INVALID_VALUE);
  CU_IS(encode(3, lower, 32, 1025), CUDA_ERROR_INVALID_VALUE);
}
