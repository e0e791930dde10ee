// SPDX-License-Identifier: Apache-2.0
// Rows of pageable memory, tile by tile through the slab.
#pragma once

#include <algorithm>
#include <cstring>

#include "copies.h"
#include "staging.h"

namespace kvgpu::guest {

struct Rows {
  uint64_t address;  // of the first byte
  uint64_t pitch_bytes;

  std::byte* at(uint64_t x, uint64_t y) const {
    return reinterpret_cast<std::byte*>(address + y * pitch_bytes + x);
  }
};

struct Shape {
  uint64_t width_bytes;
  uint64_t height;
  bool is_empty() const { return width_bytes == 0 || height == 0; }
};

inline void copy_rows(std::byte* dst, uint64_t dst_pitch_bytes, const std::byte* src,
                      uint64_t src_pitch_bytes, const Shape& shape) {
  for (uint64_t y = 0; y < shape.height; ++y) {
    std::memmove(dst + y * dst_pitch_bytes, src + y * src_pitch_bytes, shape.width_bytes);
  }
}

template <typename Visit>
CUresult each_tile(const Shape& shape, Visit visit) {
  const uint64_t width = std::min(shape.width_bytes, Staging::CHUNK_BYTES);
  const uint64_t height = std::max<uint64_t>(Staging::CHUNK_BYTES / width, 1);
  for (uint64_t y = 0; y < shape.height; y += height) {
    for (uint64_t x = 0; x < shape.width_bytes; x += width) {
      const Shape tile{std::min(width, shape.width_bytes - x), std::min(height, shape.height - y)};
      if (const CUresult bad = visit(x, y, tile)) return bad;
    }
  }
  return CUDA_SUCCESS;
}

// The driver's own verdict on pitches and arrays is wanted: with a reply.
template <typename Body>
CUresult submit_tile(const Enqueue& enqueue, wire::Op op, const Body& body,
                     const Staging::Piece& piece, uint64_t* number) {
  CUresult result = enqueue.submit_and_ask(op, body);
  if (result == CUDA_SUCCESS) result = mark_given_work(enqueue.stream(), number);
  if (result != CUDA_SUCCESS) Staging::get().release(piece);
  return result;
}

// `body_of(x, y, tile, address)`: the record that copies between a tile of the other side and the
// slab, where its rows lie without gaps.
template <typename BodyOf>
CUresult tiles_to_gpu(const Enqueue& enqueue, wire::Op op, const Rows& src, const Shape& shape,
                      BodyOf body_of) {
  Staging& staging = Staging::get();
  return each_tile(shape, [&](uint64_t x, uint64_t y, const Shape& tile) {
    Staging::Piece piece;
    if (const CUresult bad = staging.allocate(tile.width_bytes * tile.height, &piece)) return bad;
    copy_rows(staging.data(piece), tile.width_bytes, src.at(x, y), src.pitch_bytes, tile);
    uint64_t number;
    const auto body = body_of(x, y, tile, staging.address(piece));
    if (const CUresult bad = submit_tile(enqueue, op, body, piece, &number)) return bad;
    staging.release_at(piece, enqueue.stream(), number);
    return CUDA_SUCCESS;
  });
}

template <typename BodyOf>
CUresult tiles_from_gpu(const Enqueue& enqueue, wire::Op op, const Rows& dst, const Shape& shape,
                        BodyOf body_of) {
  Staging& staging = Staging::get();
  return each_tile(shape, [&](uint64_t x, uint64_t y, const Shape& tile) {
    Staging::Piece piece;
    if (const CUresult bad = staging.allocate(tile.width_bytes * tile.height, &piece)) return bad;
    uint64_t number;
    const auto body = body_of(x, y, tile, staging.address(piece));
    if (const CUresult bad = submit_tile(enqueue, op, body, piece, &number)) return bad;
    if (const CUresult bad = wait_for(enqueue, number)) {
      // The GPU may still write there.
      staging.release_at(piece, enqueue.stream(), number);
      return bad;
    }
    copy_rows(dst.at(x, y), dst.pitch_bytes, staging.data(piece), tile.width_bytes, tile);
    staging.release(piece);
    return CUDA_SUCCESS;
  });
}

}  // namespace kvgpu::guest
