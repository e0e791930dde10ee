// SPDX-License-Identifier: Apache-2.0
// Reading texels: addressing, conversion, filtering.
#pragma once

#include <array>
#include <optional>

#include "image.h"
#include "memory.h"

namespace software_gpu {

/// R, G, B, A as a texture instruction returns them: bits of floats or of integers.
using Texel = std::array<uint32_t, 4>;

/// Where in a texture: as many coordinates as it has dimensions, a direction for a cubemap.
struct Position {
  float at[3] = {};
  uint32_t n_dimensions = 1;
  bool is_direction = false;
  uint32_t layer = 0;
  float level = 0;
};

/// How a position moves from one of a kernel's threads to the next.
struct Gradient {
  float along[3] = {};
};

/// An image whose memory a launch has looked up: nothing outside of it is ever read or written.
class BoundImage {
 public:
  BoundImage(const Image& image, const Snapshot& memory);
  const Image& image() const { return image_; }

  // Without value: the texel lies in memory that is gone.
  std::optional<Texel> sample(const Position& position);
  /// The level of detail at which the longer of two gradients is one texel long.
  float level_of(const Position& position, const Gradient& by_x, const Gradient& by_y) const;
  /// Of a table or array without filter: the element with this index.
  std::optional<Texel> fetch(int32_t index);
  /// One channel of the four texels that a linear filter would take, anticlockwise from the lower
  /// left.
  std::optional<Texel> gather(const Position& position, unsigned channel);
  /// The address of the bytes of a surface; null: they are not there.
  char* bytes(uint64_t x_bytes, uint64_t y, uint64_t slice, uint32_t n_bytes) const;
  /// Of a sparse array, where no memory is mapped: reads are 0 there and nothing is written.
  bool is_hole(const char* bytes) const;

 private:
  /// Texel indices, and where a filter stands between them and the next ones, in 1/256.
  struct Footprint {
    int64_t first[3] = {};
    uint32_t fraction[3] = {};
    uint32_t slice = 0;
  };

  Footprint footprint(const Position& position, size_t level, bool linear) const;
  std::optional<Texel> sample_level(const Position& position, size_t level);
  /// After addressing; without value: the border.
  std::optional<Texel> texel(size_t level, const int64_t (&index)[3], uint32_t n_dimensions,
                             uint32_t slice);
  Texel convert(const char* element) const;
  Texel border() const;
  Position on_face(const Position& direction) const;
  int n_beyond_edges(const int64_t (&index)[3], size_t level) const;
  Texel across_edge(size_t level, const int64_t (&index)[3], uint32_t slice);

  const Image& image_;
  std::vector<uint64_t> n_bytes_;  // of each level, that there are
  bool is_gone_ = false;           // while one texel is read
};

}  // namespace software_gpu
