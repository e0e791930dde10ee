// SPDX-License-Identifier: Apache-2.0
// Bodies of records about arrays, textures, surfaces and tensor maps. Append-only within a major
// version; every struct is free of padding. The handles of arrays and references are the guest's
// choice. What stands for a texture or surface object is the driver's own number: kernels get it
// as a parameter.
#pragma once

#include <cstdint>

#include "kvgpu/graph_calls.h"

namespace kvgpu::wire {

struct CopyBox {  // of cuMemcpy3DAsync_v2: all copies with arrays, too
  Handle stream;
  uint64_t mark;
  MemcpyNode box;
};

// ---- arrays
struct ArrayCreate {  // and cuMipmappedArrayCreate; the reply is ArrayShape, ArrayNeeds
  Handle context;
  Handle array;
  uint64_t width;
  uint64_t height;
  uint64_t depth;
  uint32_t format;
  uint32_t n_channels;
  uint32_t flags;
  uint32_t n_levels;
};
struct ArrayShape {  // CUDA 13.0 cuda.h: CUDA_ARRAY3D_DESCRIPTOR, as the driver has it
  uint64_t width;
  uint64_t height;
  uint64_t depth;
  uint32_t format;
  uint32_t n_channels;
  uint32_t flags;
  uint32_t reserved;
};
struct ArrayNeeds {  // zeroes but of arrays that are sparse or mapped later
  // CUDA 13.0 cuda.h: CUDA_ARRAY_SPARSE_PROPERTIES
  uint32_t tile[3];
  uint32_t miptail_first_level;
  uint64_t miptail_bytes;
  uint32_t flags;
  uint32_t reserved;
  // CUDA_ARRAY_MEMORY_REQUIREMENTS
  uint64_t bytes;
  uint64_t alignment_bytes;
};
struct ArrayMade {
  ArrayShape shape;
  ArrayNeeds needs;
};
struct ArrayPart {  // a level or a plane, called `part` from now on; the reply is ArrayShape
  Handle context;
  Handle whole;
  Handle part;
  uint32_t index;
  uint32_t reserved;
};
struct MapArrays {  // followed by n x ArrayMapping
  Handle stream;
  uint64_t mark;
  uint64_t n;
};
struct ArrayMapping {  // CUDA 13.0 cuda.h: CUarrayMapInfo
  Handle array;
  uint32_t resource_type;
  uint32_t subresource_type;
  uint32_t level;
  uint32_t layer;
  uint32_t offset[3];  // in elements
  uint32_t extent[3];
  uint64_t tail_offset;  // of a mip tail, whose layer is the one above
  uint64_t tail_bytes;
  uint64_t memory;  // the number of physical memory; 0 to unmap
  uint64_t memory_offset;
  uint32_t operation;
  uint32_t device_mask;
};
static_assert(sizeof(ArrayMapping) == 88);
inline constexpr uint32_t MAX_ARRAY_MAPPINGS = 128;  // in one record
// CUDA 13.0 cuda.h, CUarray_format; 0: of those whose elements are not one after another.
constexpr uint32_t channel_bytes(uint32_t format) {
  switch (format) {
    case 0x01:  // UNSIGNED_INT8
    case 0x08:  // SIGNED_INT8
    case 0xc0:  // UNORM_INT8X1, X2, X4
    case 0xc1:
    case 0xc2:
    case 0xc6:  // SNORM_INT8X1, X2, X4
    case 0xc7:
    case 0xc8:
      return 1;
    case 0x02:  // UNSIGNED_INT16
    case 0x09:  // SIGNED_INT16
    case 0x10:  // HALF
    case 0xc3:  // UNORM_INT16X1, X2, X4
    case 0xc4:
    case 0xc5:
    case 0xc9:  // SNORM_INT16X1, X2, X4
    case 0xca:
    case 0xcb:
      return 2;
    case 0x03:  // UNSIGNED_INT32
    case 0x0a:  // SIGNED_INT32
    case 0x20:  // FLOAT
      return 4;
    default:
      return 0;
  }
}

// ---- texture and surface objects
struct ImageResource {  // CUDA 13.0 cuda.h: CUDA_RESOURCE_DESC
  uint32_t type;
  uint32_t flags;
  uint64_t object;  // the handle of an array, or a device address
  uint32_t format;
  uint32_t n_channels;
  uint64_t width;  // of linear memory: bytes
  uint64_t height;
  uint64_t pitch_bytes;
};
struct Sampler {  // CUDA_TEXTURE_DESC, plain data
  uint32_t words[26];
};
struct ImageView {  // CUDA_RESOURCE_VIEW_DESC, plain data
  uint32_t words[28];
};
struct TexObjectCreate {  // the reply to it, and to cuSurfObjectCreate: Value64
  Handle context;
  ImageResource resource;
  Sampler sampler;
  uint32_t has_view;
  uint32_t reserved;
  ImageView view;
};
struct SurfObjectCreate {
  Handle context;
  ImageResource resource;
};
struct ImageObject {
  Handle context;
  uint64_t object;
};

// ---- references
struct ReferenceRef {  // cuTexRefCreate, cuTexRefGetBorderColor
  Handle context;
  Handle reference;
};
struct GetReference {  // followed by the name
  Handle context;
  Handle module;
  Handle reference;
  uint32_t name_bytes;
  uint32_t reserved;
};
struct ReferenceAddress {  // the reply: Value64, the offset
  Handle context;
  Handle reference;
  uint64_t address;
  uint64_t bytes;
  uint32_t wants_offset;
  uint32_t reserved;
};
struct ReferenceAddress2D {
  Handle context;
  Handle reference;
  uint64_t address;
  uint64_t width;
  uint64_t height;
  uint64_t pitch_bytes;
  uint32_t format;
  uint32_t n_channels;
};
struct BorderColor {
  float channels[4];
};
struct ReferenceColor {  // the reply to the getter: BorderColor
  Handle context;
  Handle reference;
  BorderColor color;
};

// ---- tensor maps; the reply is TensorMap
inline constexpr uint32_t MAX_TENSOR_RANK = 5;
inline constexpr uint32_t MAX_TENSOR_CORNER = MAX_TENSOR_RANK - 2;
struct TensorMap {  // CUDA 13.0 cuda.h: CUtensorMap
  uint64_t words[16];
};
struct TensorMapEncode {
  Handle context;
  uint64_t address;
  uint64_t dims[MAX_TENSOR_RANK];
  uint64_t strides_bytes[MAX_TENSOR_RANK];
  uint32_t steps[MAX_TENSOR_RANK];  // elementStrides
  uint32_t box[MAX_TENSOR_RANK];
  int32_t lower[MAX_TENSOR_CORNER];
  int32_t upper[MAX_TENSOR_CORNER];
  uint32_t rank;
  uint32_t type;
  uint32_t n_channels;
  uint32_t n_pixels;
  uint32_t interleave;
  uint32_t mode;
  uint32_t swizzle;
  uint32_t promotion;
  uint32_t fill;
  uint32_t reserved;
};
static_assert(sizeof(TensorMapEncode) == 200);
struct TensorMapReplace {
  Handle context;
  uint64_t address;
  TensorMap map;
};

}  // namespace kvgpu::wire
