// SPDX-License-Identifier: Apache-2.0
// Copies and sets of rows: 2D, and 3D as one plane after another. Where a side is pageable, tiles
// of rows go through the slab. Arrays are not served.
#include <algorithm>
#include <cstring>

#include "address_space.h"
#include "copies.h"
#include "generated/api.gen.h"
#include "refuse.h"
#include "staging.h"

namespace kvgpu::guest {

namespace {

struct Rows {
  uint64_t address;  // of the first byte
  uint64_t pitch_bytes;
};

struct Shape {
  uint64_t width_bytes;
  uint64_t height;
  bool is_empty() const { return width_bytes == 0 || height == 0; }
};

// Bytes from the first to the last one; false: more than there are addresses.
bool extent_bytes(const Rows& rows, const Shape& shape, uint64_t* bytes) {
  uint64_t before_last;
  return !__builtin_mul_overflow(rows.pitch_bytes, shape.height - 1, &before_last) &&
         !__builtin_add_overflow(before_last, shape.width_bytes, bytes);
}

// One side as CUDA_MEMCPY2D and CUDA_MEMCPY3D describe it.
struct Side {
  CUmemorytype type;
  uint64_t host, device;
  uint64_t x_bytes, y, z;
  uint64_t pitch_bytes, height;
};

// The rows of plane `z` of the copy; CUDA_ERROR_INVALID_VALUE where they cannot be.
CUresult rows_of(const Side& side, const Shape& shape, uint64_t z, Rows* rows) {
  uint64_t base;
  switch (side.type) {
    case CU_MEMORYTYPE_HOST:
      base = side.host;
      break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      base = side.device;
      break;
    case CU_MEMORYTYPE_ARRAY:
      return static_cast<CUresult>(refuse_part("a copy to or from a CUDA array"));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t row_end_bytes, row, slice;
  if (__builtin_add_overflow(side.x_bytes, shape.width_bytes, &row_end_bytes) ||
      side.pitch_bytes < row_end_bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (__builtin_mul_overflow(side.z + z, side.height, &slice) ||
      __builtin_add_overflow(slice, side.y, &row) ||
      __builtin_mul_overflow(row, side.pitch_bytes, &row) ||
      __builtin_add_overflow(base + side.x_bytes, row, &rows->address) || base == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  rows->pitch_bytes = side.pitch_bytes;
  return CUDA_SUCCESS;
}

// The operand that holds all the rows; what the type says must be true of it.
CUresult find_operand(const Side& side, const Rows& rows, const Shape& shape, Operand* found) {
  uint64_t bytes;
  if (!extent_bytes(rows, shape, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  *found = operand(rows.address, bytes);
  // Device memory beyond its end, or that nobody has access to, is no host memory.
  const bool is_of_host =
      side.type == CU_MEMORYTYPE_UNIFIED && !is_reserved_for_devices(rows.address, 1);
  const bool wrong =
      side.type == CU_MEMORYTYPE_HOST ? found->is_device : found->is_pageable() && !is_of_host;
  return wrong ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult copy_on_gpu(const Enqueue& enqueue, const wire::Copy2D& body, Wait wait) {
  // The driver's own verdict on pitches is wanted: with a reply.
  const CUresult result = enqueue.submit_and_ask(wire::Op::cuMemcpy2DAsync_v2, body);
  if (result != CUDA_SUCCESS || wait == Wait::NO || enqueue.capture() != nullptr) return result;
  uint64_t number;
  if (const CUresult bad = mark_stream(enqueue.stream(), &number)) return bad;
  return wait_for(enqueue, number);
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

void copy_rows(std::byte* dst, uint64_t dst_pitch_bytes, const std::byte* src,
               uint64_t src_pitch_bytes, const Shape& shape) {
  for (uint64_t y = 0; y < shape.height; ++y) {
    std::memmove(dst + y * dst_pitch_bytes, src + y * src_pitch_bytes, shape.width_bytes);
  }
}

std::byte* bytes_at(const Rows& rows, uint64_t x, uint64_t y) {
  return reinterpret_cast<std::byte*>(rows.address + y * rows.pitch_bytes + x);
}

CUresult rows_to_device(const Enqueue& enqueue, const Rows& dst, const Rows& src,
                        const Shape& shape) {
  Staging& staging = Staging::get();
  return each_tile(shape, [&](uint64_t x, uint64_t y, const Shape& tile) {
    Staging::Piece piece;
    if (const CUresult bad = staging.allocate(tile.width_bytes * tile.height, &piece)) return bad;
    copy_rows(staging.data(piece), tile.width_bytes, bytes_at(src, x, y), src.pitch_bytes, tile);
    const wire::Copy2D body{0,
                            0,
                            dst.address + y * dst.pitch_bytes + x,
                            dst.pitch_bytes,
                            staging.address(piece),
                            tile.width_bytes,
                            tile.width_bytes,
                            tile.height};
    uint64_t number;
    CUresult result = enqueue.submit_and_ask(wire::Op::cuMemcpy2DAsync_v2, body);
    if (result == CUDA_SUCCESS) result = mark_given_work(enqueue.stream(), &number);
    if (result != CUDA_SUCCESS) {
      staging.release(piece);
      return result;
    }
    staging.release_at(piece, enqueue.stream(), number);
    return CUDA_SUCCESS;
  });
}

CUresult rows_from_device(const Enqueue& enqueue, const Rows& dst, const Rows& src,
                          const Shape& shape) {
  Staging& staging = Staging::get();
  return each_tile(shape, [&](uint64_t x, uint64_t y, const Shape& tile) {
    Staging::Piece piece;
    if (const CUresult bad = staging.allocate(tile.width_bytes * tile.height, &piece)) return bad;
    const wire::Copy2D body{0,
                            0,
                            staging.address(piece),
                            tile.width_bytes,
                            src.address + y * src.pitch_bytes + x,
                            src.pitch_bytes,
                            tile.width_bytes,
                            tile.height};
    uint64_t number;
    CUresult result = enqueue.submit_and_ask(wire::Op::cuMemcpy2DAsync_v2, body);
    if (result == CUDA_SUCCESS) result = mark_given_work(enqueue.stream(), &number);
    if (result != CUDA_SUCCESS) {
      staging.release(piece);
      return result;
    }
    if ((result = wait_for(enqueue, number)) != CUDA_SUCCESS) {
      // The GPU may still write there.
      staging.release_at(piece, enqueue.stream(), number);
      return result;
    }
    copy_rows(bytes_at(dst, x, y), dst.pitch_bytes, staging.data(piece), tile.width_bytes, tile);
    staging.release(piece);
    return CUDA_SUCCESS;
  });
}

CUresult copy_plane(const Enqueue& enqueue, const Side& dst_side, const Side& src_side,
                    const Shape& shape, uint64_t z, Wait wait) {
  Rows dst{}, src{};
  Operand to{}, from{};
  if (const CUresult bad = rows_of(dst_side, shape, z, &dst)) return bad;
  if (const CUresult bad = rows_of(src_side, shape, z, &src)) return bad;
  if (const CUresult bad = find_operand(dst_side, dst, shape, &to)) return bad;
  if (const CUresult bad = find_operand(src_side, src, shape, &from)) return bad;
  if (!to.is_pageable()) dst.address = to.gpu_address;
  if (!from.is_pageable()) src.address = from.gpu_address;
  if (!to.is_pageable() && !from.is_pageable()) {
    // Between device memory even the synchronous form returns at once, as natively.
    const bool asked = to.sync_memops || from.sync_memops;
    const bool on_device = to.is_device && from.is_device && !asked;
    const wire::Copy2D body{0,
                            0,
                            dst.address,
                            dst.pitch_bytes,
                            src.address,
                            src.pitch_bytes,
                            shape.width_bytes,
                            shape.height};
    return copy_on_gpu(enqueue, body, on_device ? Wait::NO : wait);
  }
  if (enqueue.capture() != nullptr) return refuse_captured_pageable();
  if (!to.is_pageable()) {
    if (const CUresult bad = settle_staged(enqueue, from)) return bad;
    return rows_to_device(enqueue, dst, src, shape);
  }
  if (!from.is_pageable()) return rows_from_device(enqueue, dst, src, shape);
  if (const CUresult bad = synchronize_stream(enqueue.stream())) return bad;
  copy_rows(bytes_at(dst, 0, 0), dst.pitch_bytes, bytes_at(src, 0, 0), src.pitch_bytes, shape);
  return CUDA_SUCCESS;
}

CUresult copy_2d(const CUDA_MEMCPY2D* p, CUstream stream, Wait wait) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  const Shape shape{p->WidthInBytes, p->Height};
  if (shape.is_empty()) return CUDA_SUCCESS;
  const Side dst{p->dstMemoryType, reinterpret_cast<uint64_t>(p->dstHost),
                 p->dstDevice,     p->dstXInBytes,
                 p->dstY,          0,
                 p->dstPitch,      0};
  const Side src{p->srcMemoryType, reinterpret_cast<uint64_t>(p->srcHost),
                 p->srcDevice,     p->srcXInBytes,
                 p->srcY,          0,
                 p->srcPitch,      0};
  return copy_plane(enqueue, dst, src, shape, 0, wait);
}

CUresult copy_3d(const CUDA_MEMCPY3D* p, CUstream stream, Wait wait) {
  if (p == nullptr || p->srcLOD != 0 || p->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  const Shape shape{p->WidthInBytes, p->Height};
  if (shape.is_empty() || p->Depth == 0) return CUDA_SUCCESS;
  const Side dst{p->dstMemoryType, reinterpret_cast<uint64_t>(p->dstHost),
                 p->dstDevice,     p->dstXInBytes,
                 p->dstY,          p->dstZ,
                 p->dstPitch,      p->dstHeight};
  const Side src{p->srcMemoryType, reinterpret_cast<uint64_t>(p->srcHost),
                 p->srcDevice,     p->srcXInBytes,
                 p->srcY,          p->srcZ,
                 p->srcPitch,      p->srcHeight};
  for (uint64_t z = 0; z < p->Depth; ++z) {
    if (const CUresult bad = copy_plane(enqueue, dst, src, shape, z, wait)) return bad;
  }
  return CUDA_SUCCESS;
}

CUresult set_2d(wire::Op op, CUdeviceptr dst, size_t pitch_bytes, uint32_t value, size_t width,
                size_t height, size_t element_bytes, CUstream stream, Wait wait_where_asked) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  Shape shape{0, height};
  if (__builtin_mul_overflow(width, element_bytes, &shape.width_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (height == 1) pitch_bytes = shape.width_bytes;  // not looked at
  if (dst % element_bytes != 0 || pitch_bytes % element_bytes != 0 ||
      pitch_bytes < shape.width_bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t bytes;
  if (!extent_bytes({dst, pitch_bytes}, shape, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  const Operand to = operand(dst, bytes);
  if (to.is_pageable()) return CUDA_ERROR_INVALID_VALUE;
  ask_where_needed(enqueue, to, to);
  const wire::Memset2D body{0, 0, to.gpu_address, pitch_bytes, width, height, value, 0};
  if (const CUresult bad = enqueue.submit(op, body)) return bad;
  if (!to.sync_memops || wait_where_asked == Wait::NO) return CUDA_SUCCESS;
  return synchronize_stream(enqueue.stream());
}

}  // namespace

CUresult memcpy_2d_v2(const CUDA_MEMCPY2D* pCopy, CUstream stream) {
  return copy_2d(pCopy, stream, Wait::UNTIL_DONE);
}
CUresult memcpy_2d_unaligned_v2(const CUDA_MEMCPY2D* pCopy, CUstream stream) {
  return copy_2d(pCopy, stream, Wait::UNTIL_DONE);
}
CUresult memcpy_2d_async_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return copy_2d(pCopy, hStream, Wait::NO);
}
CUresult memcpy_3d_v2(const CUDA_MEMCPY3D* pCopy, CUstream stream) {
  return copy_3d(pCopy, stream, Wait::UNTIL_DONE);
}
CUresult memcpy_3d_async_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return copy_3d(pCopy, hStream, Wait::NO);
}

CUresult memset_d2d8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                        size_t Height, CUstream stream) {
  return set_2d(wire::Op::cuMemsetD2D8Async, dstDevice, dstPitch, uc, Width, Height, 1, stream,
                Wait::UNTIL_DONE);
}
CUresult memset_d2d16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                         size_t Height, CUstream stream) {
  return set_2d(wire::Op::cuMemsetD2D16Async, dstDevice, dstPitch, us, Width, Height, 2, stream,
                Wait::UNTIL_DONE);
}
CUresult memset_d2d32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                         size_t Height, CUstream stream) {
  return set_2d(wire::Op::cuMemsetD2D32Async, dstDevice, dstPitch, ui, Width, Height, 4, stream,
                Wait::UNTIL_DONE);
}
CUresult memset_d2d8_async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                           size_t Height, CUstream hStream) {
  return set_2d(wire::Op::cuMemsetD2D8Async, dstDevice, dstPitch, uc, Width, Height, 1, hStream,
                Wait::NO);
}
CUresult memset_d2d16_async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                            size_t Height, CUstream hStream) {
  return set_2d(wire::Op::cuMemsetD2D16Async, dstDevice, dstPitch, us, Width, Height, 2, hStream,
                Wait::NO);
}
CUresult memset_d2d32_async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                            size_t Height, CUstream hStream) {
  return set_2d(wire::Op::cuMemsetD2D32Async, dstDevice, dstPitch, ui, Width, Height, 4, hStream,
                Wait::NO);
}

}  // namespace kvgpu::guest
