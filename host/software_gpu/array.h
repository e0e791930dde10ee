// SPDX-License-Identifier: Apache-2.0
// CUDA arrays: what their elements are, and where they lie (tiling.h). Slices are also the layers
// of a layered array, and the faces of a cubemap.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tiling.h"

namespace software_gpu {

struct Context;

/// What an element consists of.
struct Format {
  enum class Channel : uint8_t { UNSIGNED, SIGNED, UNORM, SNORM, FLOAT };
  Channel channel = Channel::UNSIGNED;
  uint8_t channel_bytes = 0;
  uint8_t n_channels = 0;
  uint32_t element_bytes() const { return uint32_t{channel_bytes} * n_channels; }
};

/// CUDA_ERROR_NOT_SUPPORTED for block-compressed, planar and packed formats.
[[nodiscard]] CUresult find_format(CUarray_format format, unsigned n_channels, Format* out);

struct Array {
  Context& context;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor;
  const Format format;
  const uint64_t address;
  const uint64_t buffer_id;  // of its memory, which another one may have had before
  const Tiling tiling;
  const std::shared_ptr<Tiles> tiles;  // null: its memory is its own
  const bool is_level = false;         // of a mipmapped array, with which it goes
  uint64_t n_rows() const { return std::max<uint64_t>(descriptor.Height, 1); }
  uint64_t n_slices() const { return std::max<uint64_t>(descriptor.Depth, 1); }
  uint64_t width_bytes() const { return descriptor.Width * format.element_bytes(); }
};

struct MipmappedArray {
  Context& context;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor;
  const uint64_t address;
  const std::shared_ptr<Tiles> tiles;
  std::vector<std::shared_ptr<Array>> levels;
};

[[nodiscard]] CUresult create_array(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                                    std::shared_ptr<Array>* out);
[[nodiscard]] CUresult create_mipmapped_array(Context& context,
                                              const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                                              unsigned n_levels,
                                              std::shared_ptr<MipmappedArray>* out);

/// Make the handles of the context's arrays, and of textures and surfaces, invalid.
void forget_arrays(const Context& context);

/// The device attribute of this kind, what arrays, textures and surfaces may be like; 0: none.
int image_limit(CUdevice_attribute id);

}  // namespace software_gpu
