// SPDX-License-Identifier: Apache-2.0
// Copies and sets of rows: 2D, and 3D. Where a side is pageable, one plane after another goes
// through the slab, in tiles of rows.
#include "address_space.h"
#include "copy_boxes.h"
#include "copy_tiles.h"
#include "generated/api.gen.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

// Bytes from the first to the last one; false: more than there are addresses.
bool extent_bytes(const Rows& rows, const Shape& shape, uint64_t* bytes) {
  uint64_t before_last;
  return !__builtin_mul_overflow(rows.pitch_bytes, shape.height - 1, &before_last) &&
         !__builtin_add_overflow(before_last, shape.width_bytes, bytes);
}

// The rows of plane `z` of the copy; CUDA_ERROR_INVALID_VALUE where they cannot be.
CUresult rows_of(const wire::MemcpySide& side, const Shape& shape, uint64_t z, Rows* rows) {
  if (side.type != CU_MEMORYTYPE_HOST && side.type != CU_MEMORYTYPE_DEVICE &&
      side.type != CU_MEMORYTYPE_UNIFIED) {
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
      __builtin_add_overflow(side.address + side.x_bytes, row, &rows->address) ||
      side.address == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  rows->pitch_bytes = side.pitch_bytes;
  return CUDA_SUCCESS;
}

// The operand that holds all the rows.
CUresult find_operand(const wire::MemcpySide& side, const Rows& rows, const Shape& shape,
                      Operand* found) {
  uint64_t bytes;
  if (!extent_bytes(rows, shape, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  *found = operand(rows.address, bytes);
  return may_be(side.type, *found) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_on_gpu(const Enqueue& enqueue, const wire::Copy2D& body, Wait wait) {
  // The driver's own verdict on pitches is wanted: with a reply.
  const CUresult result = enqueue.submit_and_ask(wire::Op::cuMemcpy2DAsync_v2, body);
  if (result != CUDA_SUCCESS || wait == Wait::NO || enqueue.capture() != nullptr) return result;
  uint64_t number;
  if (const CUresult bad = mark_stream(enqueue.stream(), &number)) return bad;
  return wait_for(enqueue, number);
}

CUresult rows_to_device(const Enqueue& enqueue, const Rows& dst, const Rows& src,
                        const Shape& shape) {
  return tiles_to_gpu(enqueue, wire::Op::cuMemcpy2DAsync_v2, src, shape,
                      [&](uint64_t x, uint64_t y, const Shape& tile, uint64_t address) {
                        return wire::Copy2D{0,
                                            0,
                                            dst.address + y * dst.pitch_bytes + x,
                                            dst.pitch_bytes,
                                            address,
                                            tile.width_bytes,
                                            tile.width_bytes,
                                            tile.height};
                      });
}

CUresult rows_from_device(const Enqueue& enqueue, const Rows& dst, const Rows& src,
                          const Shape& shape) {
  return tiles_from_gpu(enqueue, wire::Op::cuMemcpy2DAsync_v2, dst, shape,
                        [&](uint64_t x, uint64_t y, const Shape& tile, uint64_t address) {
                          return wire::Copy2D{0,
                                              0,
                                              address,
                                              tile.width_bytes,
                                              src.address + y * src.pitch_bytes + x,
                                              src.pitch_bytes,
                                              tile.width_bytes,
                                              tile.height};
                        });
}

CUresult copy_plane(const Enqueue& enqueue, const wire::MemcpySide& dst_side,
                    const wire::MemcpySide& src_side, const Shape& shape, uint64_t z, Wait wait) {
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
  copy_rows(dst.at(0, 0), dst.pitch_bytes, src.at(0, 0), src.pitch_bytes, shape);
  return CUDA_SUCCESS;
}

bool is_empty(const wire::MemcpyNode& box) {
  return box.width_bytes == 0 || box.height == 0 || box.depth == 0;
}

CUresult copy_2d(const CUDA_MEMCPY2D* p, CUstream stream, Wait wait) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(stream);
  return enqueue.status() == CUDA_SUCCESS ? copy_box(enqueue, box_of(*p), wait) : enqueue.status();
}

CUresult copy_3d(const CUDA_MEMCPY3D* p, CUstream stream, Wait wait) {
  if (p == nullptr || p->srcLOD != 0 || p->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(stream);
  return enqueue.status() == CUDA_SUCCESS ? copy_box(enqueue, box_of(*p), wait) : enqueue.status();
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

CUresult copy_box(const Enqueue& enqueue, const wire::MemcpyNode& box, Wait wait) {
  if (is_empty(box)) return CUDA_SUCCESS;
  if (has_array(box)) return copy_array_box(enqueue, box, wait);
  const Shape shape{box.width_bytes, box.height};
  if (box.depth > 1) {
    wire::MemcpyNode placed = box;
    Operand to{}, from{};
    if (const CUresult bad = place_side(box, &placed.dst, &to)) return bad;
    if (const CUresult bad = place_side(box, &placed.src, &from)) return bad;
    if (!to.is_pageable() && !from.is_pageable()) {
      return copy_placed_box(enqueue, placed, to, from, wait);
    }
  }
  for (uint64_t z = 0; z < box.depth; ++z) {
    if (const CUresult bad = copy_plane(enqueue, box.dst, box.src, shape, z, wait)) return bad;
  }
  return CUDA_SUCCESS;
}

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
