// SPDX-License-Identifier: Apache-2.0
#include "tiling.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "array.h"
#include "memory.h"
#include "virtual_memory.h"

namespace software_gpu {
namespace {

/// A tile of 64 KiB, in elements of 1, 2, 4, 8 and 16 bytes: measured on an H200, driver 580.
constexpr unsigned TILES_2D[][3] = {
    {256, 256, 1}, {256, 128, 1}, {128, 128, 1}, {128, 64, 1}, {64, 64, 1}};
constexpr unsigned TILES_3D[][3] = {
    {64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
uint64_t n_rows_of(const CUDA_ARRAY3D_DESCRIPTOR& d) { return std::max<uint64_t>(d.Height, 1); }
uint64_t n_slices_of(const CUDA_ARRAY3D_DESCRIPTOR& d) { return std::max<uint64_t>(d.Depth, 1); }

CUDA_ARRAY3D_DESCRIPTOR descriptor_of_level(const CUDA_ARRAY3D_DESCRIPTOR& whole, unsigned level) {
  const auto shrink = [level](size_t length) {
    return length == 0 ? 0 : std::max<size_t>(length >> level, 1);
  };
  CUDA_ARRAY3D_DESCRIPTOR d = whole;
  d.Width = shrink(d.Width);
  d.Height = shrink(d.Height);
  if (!has_layers(d)) d.Depth = shrink(d.Depth);
  return d;
}

/// What an H200 needs for one layer: blocks of 64 bytes by 8 rows, up to 16 of them in a column,
/// and as many behind each other. That gives all that driver 580 has said of arrays that are mapped
/// later, and of tails.
uint64_t hardware_bytes(const CUDA_ARRAY3D_DESCRIPTOR& d, const Format& format) {
  const auto in_groups = [](uint64_t n) { return round_up(n, std::min(std::bit_ceil(n), 16ul)); };
  const uint64_t across = (d.Width * format.element_bytes() + 63) / 64;
  const uint64_t depth = has_layers(d) ? 1 : n_slices_of(d);
  return across * in_groups((n_rows_of(d) + 7) / 8) * in_groups(depth) * 512;
}

Tiling rows_without_gaps(const CUDA_ARRAY3D_DESCRIPTOR& d, const Format& format) {
  return linear(d.Width * format.element_bytes(), n_rows_of(d));
}

Layout lay_out_without_tiles(const CUDA_ARRAY3D_DESCRIPTOR& whole, const Format& format,
                             unsigned n_levels) {
  Layout layout;
  uint64_t hardware = 0;
  for (unsigned level = 0; level < n_levels; ++level) {
    const CUDA_ARRAY3D_DESCRIPTOR d = descriptor_of_level(whole, level);
    const Tiling tiling = rows_without_gaps(d, format);
    layout.levels.push_back({layout.size_bytes, tiling, d});
    layout.size_bytes += tiling.stride_bytes * n_slices_of(d);
    if (n_levels > 1) layout.size_bytes = round_up(layout.size_bytes, 16);
    hardware += hardware_bytes(d, format) * (has_layers(d) ? n_slices_of(d) : 1);
  }
  if (whole.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)
    layout.size_bytes = round_up(hardware, TILE_BYTES);
  return layout;
}

bool is_smaller_than_a_tile(const CUDA_ARRAY3D_DESCRIPTOR& d, const unsigned (&tile)[3]) {
  return d.Width < tile[0] || d.Height < tile[1] || (!has_layers(d) && n_slices_of(d) < tile[2]);
}

Tiling of_tiles(const CUDA_ARRAY3D_DESCRIPTOR& d, const unsigned (&tile)[3],
                uint32_t element_bytes) {
  return {.width_bytes = uint64_t{tile[0]} * element_bytes,
          .height = tile[1],
          .depth = tile[2],
          .n_across = (d.Width + tile[0] - 1) / tile[0],
          .n_down = (n_rows_of(d) + tile[1] - 1) / tile[1],
          .stride_bytes = TILE_BYTES};
}

Layout lay_out_tiles(const CUDA_ARRAY3D_DESCRIPTOR& whole, const Format& format,
                     unsigned n_levels) {
  Layout layout;
  const bool is_3d = whole.Depth != 0 && !has_layers(whole);
  const auto& tile = (is_3d ? TILES_3D : TILES_2D)[std::countr_zero(format.element_bytes())];
  std::ranges::copy(tile, layout.tile);
  unsigned level = 0;
  for (; level < n_levels; ++level) {
    const CUDA_ARRAY3D_DESCRIPTOR d = descriptor_of_level(whole, level);
    if (is_smaller_than_a_tile(d, tile)) break;
    const Tiling tiling = of_tiles(d, tile, format.element_bytes());
    layout.levels.push_back({layout.size_bytes, tiling, d});
    layout.size_bytes += tiling.layer_bytes() * ((n_slices_of(d) + tile[2] - 1) / tile[2]);
  }
  layout.first_in_tail = level;
  if (level == n_levels) return layout;
  layout.tail_offset_bytes = layout.size_bytes;
  layout.is_one_tail = level == 0;
  uint64_t layer_bytes = 0;
  for (; level < n_levels; ++level) {
    const CUDA_ARRAY3D_DESCRIPTOR d = descriptor_of_level(whole, level);
    layout.levels.push_back(
        {layout.tail_offset_bytes + layer_bytes, rows_without_gaps(d, format), d});
    layer_bytes += hardware_bytes(d, format);
  }
  const uint64_t n_layers = has_layers(whole) ? n_slices_of(whole) : 1;
  layout.tail_bytes =
      round_up(layout.is_one_tail ? layer_bytes * n_layers : layer_bytes, TILE_BYTES);
  if (has_layers(whole))
    for (unsigned i = layout.first_in_tail; i < n_levels; ++i)
      layout.levels[i].tiling.stride_bytes = layout.is_one_tail ? layer_bytes : layout.tail_bytes;
  layout.size_bytes += layout.is_one_tail ? layout.tail_bytes : layout.tail_bytes * n_layers;
  return layout;
}

}  // namespace

Layout lay_out(const CUDA_ARRAY3D_DESCRIPTOR& whole, const Format& format, unsigned n_levels) {
  return whole.Flags & CUDA_ARRAY3D_SPARSE ? lay_out_tiles(whole, format, n_levels)
                                           : lay_out_without_tiles(whole, format, n_levels);
}

Tiles::Tiles(std::shared_ptr<const Allocation> range, Layout layout, bool is_sparse)
    : range_(std::move(range)), layout_(std::move(layout)), is_sparse_(is_sparse) {}

CUresult Tiles::map(uint64_t first_byte, uint64_t n_bytes,
                    const std::shared_ptr<const Physical>& physical, uint64_t offset_bytes) {
  std::lock_guard lock(mutex_);
  void* const at = reinterpret_cast<void*>(range_->base + first_byte);
  if (!physical->backing->map(at, offset_bytes, n_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  for (uint64_t done = 0; done < n_bytes; done += TILE_BYTES)
    mapped_[(first_byte + done) / TILE_BYTES] = physical;
  return CUDA_SUCCESS;
}

CUresult Tiles::unmap(uint64_t first_byte, uint64_t n_bytes) {
  std::lock_guard lock(mutex_);
  // The system call itself: see Backing::map().
  if (syscall(SYS_mmap, range_->base + first_byte, n_bytes, long{PROT_READ | PROT_WRITE},
              long{MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED}, -1L, 0L) == -1)
    return CUDA_ERROR_OUT_OF_MEMORY;
  for (uint64_t done = 0; done < n_bytes; done += TILE_BYTES)
    mapped_.erase((first_byte + done) / TILE_BYTES);
  return CUDA_SUCCESS;
}

uint64_t Tiles::rest_bytes(uint64_t address) const {
  return TILE_BYTES - (address - range_->base) % TILE_BYTES;
}

bool Tiles::is_mapped(uint64_t address) const {
  std::lock_guard lock(mutex_);
  return mapped_.contains((address - range_->base) / TILE_BYTES);
}

}  // namespace software_gpu
