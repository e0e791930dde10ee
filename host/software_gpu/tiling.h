// SPDX-License-Identifier: Apache-2.0
// Where the elements of an array lie, and what of its memory is there where that is mapped later.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace software_gpu {

struct Allocation;
struct Format;
struct Physical;

/// Do all levels of such an array have as many slices?
inline bool has_layers(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  return d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

/// Tiles behind each other, rows of a tile without gaps. Where nobody maps tiles a slice is one.
struct Tiling {
  uint64_t width_bytes = 1, height = 1, depth = 1;  // of a tile
  uint64_t n_across = 1, n_down = 1;                // tiles of a slice
  uint64_t stride_bytes = 0;                        // from a tile to the next
  uint64_t index(uint64_t x_bytes, uint64_t y, uint64_t z) const {
    return (z / depth * n_down + y / height) * n_across + x_bytes / width_bytes;
  }
  uint64_t offset(uint64_t x_bytes, uint64_t y, uint64_t z) const {
    const uint64_t row = z % depth * height + y % height;
    return index(x_bytes, y, z) * stride_bytes + row * width_bytes + x_bytes % width_bytes;
  }
  /// How much of the row lies behind that byte.
  uint64_t rest_bytes(uint64_t x_bytes) const { return width_bytes - x_bytes % width_bytes; }
  /// From one layer to the next.
  uint64_t layer_bytes() const { return n_across * n_down * stride_bytes; }
};
/// Rows and slices without gaps.
inline Tiling linear(uint64_t pitch_bytes, uint64_t n_rows) {
  return {.width_bytes = pitch_bytes, .height = n_rows, .stride_bytes = pitch_bytes * n_rows};
}

/// The memory of an array, or of all levels of a mipmapped one.
struct Layout {
  struct Level {
    uint64_t offset_bytes;
    Tiling tiling;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
  };
  std::vector<Level> levels;
  uint64_t size_bytes = 0;
  // Of sparse arrays. Levels from `first_in_tail` on, if any, are smaller than a tile and lie in a
  // tail of their own for each layer, or one for all.
  unsigned tile[3] = {};  // in elements
  unsigned first_in_tail = 0;
  uint64_t tail_offset_bytes = 0, tail_bytes = 0;  // of one tail
  bool is_one_tail = false;
};

constexpr uint64_t TILE_BYTES = 64 << 10;

[[nodiscard]] Layout lay_out(const CUDA_ARRAY3D_DESCRIPTOR& whole, const Format& format,
                             unsigned n_levels);

/// The memory of an array that is sparse or mapped later. Where nothing is mapped there are pages
/// all the same, empty ones, so that a kernel that is late brings nobody down.
class Tiles {
 public:
  Tiles(std::shared_ptr<const Allocation> range, Layout layout, bool is_sparse);
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  const Layout& layout() const { return layout_; }
  /// Else all is mapped at once, and there is nothing to read before.
  bool is_sparse() const { return is_sparse_; }
  [[nodiscard]] CUresult map(uint64_t first_byte, uint64_t n_bytes,
                             const std::shared_ptr<const Physical>& physical,
                             uint64_t offset_bytes);
  [[nodiscard]] CUresult unmap(uint64_t first_byte, uint64_t n_bytes);
  bool is_mapped(uint64_t address) const;
  /// To the end of the tile that the address is in; a row in a tail may go on in the next one.
  uint64_t rest_bytes(uint64_t address) const;

 private:
  const std::shared_ptr<const Allocation> range_;  // its addresses are ours as long as this is held
  const Layout layout_;
  const bool is_sparse_;
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const Physical>> mapped_;  // by the number of the tile
};

}  // namespace software_gpu
