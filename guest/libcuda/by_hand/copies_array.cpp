// SPDX-License-Identifier: Apache-2.0
// Copies to and from arrays. Where they lie in one the driver checks; of a copy that goes tile by
// tile it would only see the tiles.
#include "copy_boxes.h"
#include "copy_tiles.h"
#include "generated/api.gen.h"

namespace kvgpu::guest {

namespace {

bool is_array(const wire::MemcpySide& side) { return side.type == CU_MEMORYTYPE_ARRAY; }

// Does the box lie in the array? True, too, where its elements are unlike others': the driver
// knows.
bool fits(const wire::MemcpySide& side, const wire::MemcpyNode& box) {
  const Array* const array = find(from_wire<CUarray>(side.address));
  if (array == nullptr) return false;
  const wire::ArrayShape& shape = array->shape;
  const uint64_t element_bytes = uint64_t{wire::channel_bytes(shape.format)} * shape.n_channels;
  if (element_bytes == 0) return true;
  const auto inside = [](uint64_t first, uint64_t n, uint64_t all) {
    return first <= all && n <= all - first;
  };
  return inside(side.x_bytes, box.width_bytes, shape.width * element_bytes) &&
         inside(side.y, box.height, std::max<uint64_t>(shape.height, 1)) &&
         inside(side.z, box.depth, std::max<uint64_t>(shape.depth, 1));
}

// Rows of the box's plane z in memory.
Rows rows_at(const wire::MemcpySide& side, uint64_t z) {
  const uint64_t row = (side.z + z) * side.height + side.y;
  return {side.address + row * side.pitch_bytes + side.x_bytes, side.pitch_bytes};
}

wire::MemcpySide moved(const wire::MemcpySide& side, uint64_t x, uint64_t y, uint64_t z) {
  wire::MemcpySide to = side;
  to.x_bytes += x;
  to.y += y;
  to.z += z;
  return to;
}

wire::MemcpySide in_slab(uint64_t address, const Shape& tile) {
  return {address, 0, 0, 0, tile.width_bytes, tile.height, CU_MEMORYTYPE_HOST, 0};
}

// Between an array and pageable memory.
CUresult copy_tiles(const Enqueue& enqueue, const wire::MemcpyNode& box) {
  const bool to_array = is_array(box.dst);
  const wire::MemcpySide& array = to_array ? box.dst : box.src;
  const wire::MemcpySide& memory = to_array ? box.src : box.dst;
  if (!fits(array, box)) return CUDA_ERROR_INVALID_VALUE;
  const Shape shape{box.width_bytes, box.height};
  for (uint64_t z = 0; z < box.depth; ++z) {
    const auto body_of = [&](uint64_t x, uint64_t y, const Shape& tile, uint64_t address) {
      const wire::MemcpySide there = moved(array, x, y, z), here = in_slab(address, tile);
      return wire::CopyBox{
          0,
          0,
          {to_array ? there : here, to_array ? here : there, tile.width_bytes, tile.height, 1}};
    };
    const Rows rows = rows_at(memory, z);
    constexpr wire::Op OP = wire::Op::cuMemcpy3DAsync_v2;
    const CUresult result = to_array ? tiles_to_gpu(enqueue, OP, rows, shape, body_of)
                                     : tiles_from_gpu(enqueue, OP, rows, shape, body_of);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

wire::MemcpySide element(CUarray array, size_t offset) {
  return {to_wire(array), offset, 0, 0, 0, 0, CU_MEMORYTYPE_ARRAY, 0};
}
wire::MemcpySide bytes_at(const void* host, size_t n) {
  return {reinterpret_cast<uint64_t>(host), 0, 0, 0, n, 1, CU_MEMORYTYPE_HOST, 0};
}
wire::MemcpySide bytes_at(CUdeviceptr dptr, size_t n) {
  return {dptr, 0, 0, 0, n, 1, CU_MEMORYTYPE_DEVICE, 0};
}

CUresult copy_bytes(const wire::MemcpySide& dst, const wire::MemcpySide& src, size_t n,
                    CUstream stream, Wait wait) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (n == 0) return CUDA_SUCCESS;
  return copy_array_box(enqueue, {dst, src, n, 1, 1}, wait);
}

}  // namespace

bool has_array(const wire::MemcpyNode& box) { return is_array(box.dst) || is_array(box.src); }

CUresult copy_placed_box(const Enqueue& enqueue, const wire::MemcpyNode& box, const Operand& to,
                         const Operand& from, Wait wait) {
  const wire::CopyBox body{0, 0, box};
  const CUresult result = enqueue.submit_and_ask(wire::Op::cuMemcpy3DAsync_v2, body);
  // Between device memory even the synchronous form returns at once, as natively.
  const bool asked = to.sync_memops || from.sync_memops;
  const bool on_device = to.is_device && from.is_device && !asked;
  if (result != CUDA_SUCCESS || wait == Wait::NO || on_device || enqueue.capture() != nullptr) {
    return result;
  }
  uint64_t number;
  if (const CUresult bad = mark_stream(enqueue.stream(), &number)) return bad;
  return wait_for(enqueue, number);
}

CUresult copy_array_box(const Enqueue& enqueue, const wire::MemcpyNode& box, Wait wait) {
  wire::MemcpyNode placed = box;
  Operand to{}, from{};
  if (const CUresult bad = place_side(box, &placed.dst, &to)) return bad;
  if (const CUresult bad = place_side(box, &placed.src, &from)) return bad;
  if (!to.is_pageable() && !from.is_pageable()) {
    return copy_placed_box(enqueue, placed, to, from, wait);
  }
  if (enqueue.capture() != nullptr) return refuse_captured_pageable();
  if (const CUresult bad = settle_staged(enqueue, from)) return bad;
  return copy_tiles(enqueue, placed);
}

CUresult memcpy_htoa_v2(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount,
                        CUstream stream) {
  return copy_bytes(element(dstArray, dstOffset), bytes_at(srcHost, ByteCount), ByteCount, stream,
                    Wait::UNTIL_DONE);
}
CUresult memcpy_atoh_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                        CUstream stream) {
  return copy_bytes(bytes_at(dstHost, ByteCount), element(srcArray, srcOffset), ByteCount, stream,
                    Wait::UNTIL_DONE);
}
CUresult memcpy_dtoa_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount,
                        CUstream stream) {
  return copy_bytes(element(dstArray, dstOffset), bytes_at(srcDevice, ByteCount), ByteCount, stream,
                    Wait::UNTIL_DONE);
}
CUresult memcpy_atod_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                        CUstream stream) {
  return copy_bytes(bytes_at(dstDevice, ByteCount), element(srcArray, srcOffset), ByteCount, stream,
                    Wait::UNTIL_DONE);
}
CUresult memcpy_atoa_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                        size_t ByteCount, CUstream stream) {
  return copy_bytes(element(dstArray, dstOffset), element(srcArray, srcOffset), ByteCount, stream,
                    Wait::UNTIL_DONE);
}
CUresult memcpy_htoa_async_v2(CUarray dstArray, size_t dstOffset, const void* srcHost,
                              size_t ByteCount, CUstream hStream) {
  return copy_bytes(element(dstArray, dstOffset), bytes_at(srcHost, ByteCount), ByteCount, hStream,
                    Wait::NO);
}
CUresult memcpy_atoh_async_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                              CUstream hStream) {
  return copy_bytes(bytes_at(dstHost, ByteCount), element(srcArray, srcOffset), ByteCount, hStream,
                    Wait::NO);
}

}  // namespace kvgpu::guest
