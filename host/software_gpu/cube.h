// SPDX-License-Identifier: Apache-2.0
// Cubemaps: from a direction to a point of a face and back.
#pragma once

#include <array>
#include <cstdint>

namespace software_gpu {

using Direction = std::array<double, 3>;

/// A face, in the order of CUarray_cubemap_face, and a point on it: both from -1 to 1.
struct FacePoint {
  uint32_t face = 0;
  double s = 0, t = 0;
};

FacePoint on_cube(const Direction& direction);
/// How fast the point on the direction's face moves when the direction does so.
FacePoint slope(const Direction& direction, const Direction& step);
/// Of a point that may lie beyond the edges of its face, in the face's plane.
Direction direction_of(const FacePoint& point);

}  // namespace software_gpu
