// SPDX-License-Identifier: Apache-2.0
// For the files of texture and surface instructions.
#pragma once

#include "block.h"
#include "decoder.h"
#include "sampler.h"

namespace software_gpu {

/// The images that the lanes of one instruction name; mostly they name the same.
class ImageAccess {
 public:
  ImageAccess(Block& block, const Instruction& in, bool is_surface)
      : block_(block), in_(in), is_surface_(is_surface) {}
  /// Null after a fault: no image has this handle.
  BoundImage* find(uint32_t lane, uint64_t handle);
  /// The fault that what the lane wants of an image is not there.
  void fail(uint32_t lane, const char* what) const;

 private:
  Block& block_;
  const Instruction& in_;
  const bool is_surface_;
  uint64_t handle_ = 0;
  std::unique_ptr<BoundImage> bound_;
};

/// What the parts of an operation's name say of the shape: "1d", …, "acube".
struct Geometry {
  const char* name;
  uint8_t n_dimensions;  // of coordinates, without the layer
  uint8_t n_operands;    // with it, and with padding
  bool is_layered, is_direction;
};
inline constexpr Geometry GEOMETRIES[] = {{"1d", 1, 1, false, false}, {"2d", 2, 2, false, false},
                                          {"3d", 3, 4, false, false}, {"a1d", 1, 2, true, false},
                                          {"a2d", 2, 4, true, false}, {"cube", 3, 4, false, true},
                                          {"acube", 3, 4, true, true}};

/// Index of the geometry that the instruction names.
uint8_t take_geometry(Decoding& d);
/// The row of the handle, from "[a]" or "[a, {…}]"; `a` may be a reference's name.
Row image_handle(Decoding& d, const ptx::Operand& operand);
/// The rows of the coordinates of "[a, {…}]".
std::vector<Row> coordinates(Decoding& d, const ptx::Operand& operand, const Geometry& geometry,
                             Type type);

}  // namespace software_gpu
