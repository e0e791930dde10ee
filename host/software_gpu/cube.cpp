// SPDX-License-Identifier: Apache-2.0
#include "cube.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace software_gpu {
namespace {

/// Which of x, y and z (1 to 3), and with which sign, s and t are, and what they are divided by.
struct Axes {
  int s, t, m;
};

// CUDA C++ Programming Guide, "Cubemap Textures".
constexpr Axes FACES[] = {{-3, -2, 1}, {3, -2, -1}, {1, 3, 2},
                          {1, -3, -2}, {1, -2, 3},  {-1, -2, -3}};

double along(const Direction& v, int axis) {
  const double value = v[static_cast<size_t>(std::abs(axis) - 1)];
  return axis < 0 ? -value : value;
}

uint32_t face_of(const Direction& d) {
  const double x = std::fabs(d[0]), y = std::fabs(d[1]), z = std::fabs(d[2]);
  const uint32_t axis = x >= y && x >= z ? 0 : y >= z ? 1 : 2;
  return 2 * axis + (d[axis] < 0 ? 1 : 0);
}

}  // namespace

FacePoint on_cube(const Direction& d) {
  const uint32_t face = face_of(d);
  const Axes& axes = FACES[face];
  const double m = along(d, axes.m);
  return {face, along(d, axes.s) / m, along(d, axes.t) / m};
}

FacePoint slope(const Direction& d, const Direction& step) {
  const uint32_t face = face_of(d);
  const Axes& axes = FACES[face];
  const double m = along(d, axes.m), dm = along(step, axes.m);
  const auto of = [&](int axis) { return (along(step, axis) * m - along(d, axis) * dm) / (m * m); };
  return {face, of(axes.s), of(axes.t)};
}

Direction direction_of(const FacePoint& point) {
  const Axes& axes = FACES[point.face];
  Direction d{};
  const auto set = [&](int axis, double value) {
    d[static_cast<size_t>(std::abs(axis) - 1)] = axis < 0 ? -value : value;
  };
  set(axes.s, point.s);
  set(axes.t, point.t);
  set(axes.m, 1);
  return d;
}

}  // namespace software_gpu
