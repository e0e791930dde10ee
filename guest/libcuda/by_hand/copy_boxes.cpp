// SPDX-License-Identifier: Apache-2.0
#include "copy_boxes.h"

#include "address_space.h"

namespace kvgpu::guest {

namespace {

uint64_t place_of(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array) {
  if (type == CU_MEMORYTYPE_ARRAY) return to_wire(array);
  return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
}

// Do rows and planes lie behind one another? Gives the bytes from the side's address to its first
// byte and to its last row's end, and is false, too, where that is more than there are addresses.
bool end_bytes(const wire::MemcpySide& side, const wire::MemcpyNode& box, uint64_t* first,
               uint64_t* end) {
  const auto place = [&](uint64_t z, uint64_t y, uint64_t x, uint64_t* bytes) {
    uint64_t row;
    return !__builtin_mul_overflow(z, side.height, &row) && !__builtin_add_overflow(row, y, &row) &&
           !__builtin_mul_overflow(row, side.pitch_bytes, &row) &&
           !__builtin_add_overflow(row, x, bytes);
  };
  uint64_t last_z, last_y, last_x, row_end, plane_end;
  return !__builtin_add_overflow(side.x_bytes, box.width_bytes, &row_end) &&
         row_end <= side.pitch_bytes && !__builtin_add_overflow(side.y, box.height, &plane_end) &&
         plane_end <= side.height && place(side.z, side.y, side.x_bytes, first) &&
         !__builtin_add_overflow(side.z, box.depth - 1, &last_z) &&
         !__builtin_add_overflow(side.y, box.height - 1, &last_y) &&
         !__builtin_add_overflow(side.x_bytes, box.width_bytes, &last_x) &&
         place(last_z, last_y, last_x, end) && *first < *end && side.address + *end > side.address;
}

}  // namespace

wire::MemcpyNode box_of(const CUDA_MEMCPY3D& p) {
  wire::MemcpyNode box{
      {place_of(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray), p.dstXInBytes, p.dstY, p.dstZ,
       p.dstPitch, p.dstHeight, static_cast<uint32_t>(p.dstMemoryType), 0},
      {place_of(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray), p.srcXInBytes, p.srcY, p.srcZ,
       p.srcPitch, p.srcHeight, static_cast<uint32_t>(p.srcMemoryType), 0},
      p.WidthInBytes,
      p.Height,
      p.Depth};
  for (wire::MemcpySide* const side : {&box.dst, &box.src}) {
    if (side->type == CU_MEMORYTYPE_ARRAY) continue;
    if (side->pitch_bytes == 0) side->pitch_bytes = side->x_bytes + box.width_bytes;
    if (side->height == 0) side->height = side->y + box.height;
  }
  return box;
}

wire::MemcpyNode box_of(const CUDA_MEMCPY2D& p) {
  CUDA_MEMCPY3D plane{};
  plane.dstMemoryType = p.dstMemoryType;
  plane.dstHost = p.dstHost;
  plane.dstDevice = p.dstDevice;
  plane.dstArray = p.dstArray;
  plane.dstXInBytes = p.dstXInBytes;
  plane.dstY = p.dstY;
  plane.dstPitch = p.dstPitch;
  plane.srcMemoryType = p.srcMemoryType;
  plane.srcHost = p.srcHost;
  plane.srcDevice = p.srcDevice;
  plane.srcArray = p.srcArray;
  plane.srcXInBytes = p.srcXInBytes;
  plane.srcY = p.srcY;
  plane.srcPitch = p.srcPitch;
  plane.WidthInBytes = p.WidthInBytes;
  plane.Height = p.Height;
  plane.Depth = 1;
  return box_of(plane);
}

CUDA_MEMCPY3D copy_of(const wire::MemcpyNode& box) {
  CUDA_MEMCPY3D p{};
  const auto& [dst, src, width_bytes, height, depth] = box;
  p.dstMemoryType = static_cast<CUmemorytype>(dst.type);
  if (dst.type == CU_MEMORYTYPE_HOST) {
    p.dstHost = reinterpret_cast<void*>(dst.address);
  } else if (dst.type == CU_MEMORYTYPE_ARRAY) {
    p.dstArray = from_wire<CUarray>(dst.address);
  } else {
    p.dstDevice = dst.address;
  }
  p.dstXInBytes = dst.x_bytes;
  p.dstY = dst.y;
  p.dstZ = dst.z;
  p.dstPitch = dst.pitch_bytes;
  p.dstHeight = dst.height;
  p.srcMemoryType = static_cast<CUmemorytype>(src.type);
  if (src.type == CU_MEMORYTYPE_HOST) {
    p.srcHost = reinterpret_cast<const void*>(src.address);
  } else if (src.type == CU_MEMORYTYPE_ARRAY) {
    p.srcArray = from_wire<CUarray>(src.address);
  } else {
    p.srcDevice = src.address;
  }
  p.srcXInBytes = src.x_bytes;
  p.srcY = src.y;
  p.srcZ = src.z;
  p.srcPitch = src.pitch_bytes;
  p.srcHeight = src.height;
  p.WidthInBytes = width_bytes;
  p.Height = height;
  p.Depth = depth;
  return p;
}

bool may_be(uint32_t type, const Operand& found) {
  return !found.is_pageable() ||
         (type != CU_MEMORYTYPE_DEVICE && !is_reserved_for_devices(found.address, 1));
}

CUresult place_side(const wire::MemcpyNode& box, wire::MemcpySide* side, Operand* found) {
  if (side->type == CU_MEMORYTYPE_ARRAY) {
    if (find(from_wire<CUarray>(side->address)) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *found = {side->address, side->address, true};
    return CUDA_SUCCESS;
  }
  *found = {side->address, side->address};
  if (side->type != CU_MEMORYTYPE_HOST && side->type != CU_MEMORYTYPE_DEVICE &&
      side->type != CU_MEMORYTYPE_UNIFIED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (box.width_bytes == 0 || box.height == 0 || box.depth == 0) return CUDA_SUCCESS;
  uint64_t first, end;
  if (side->address == 0 || !end_bytes(*side, box, &first, &end)) return CUDA_ERROR_INVALID_VALUE;
  *found = operand(side->address + first, end - first);
  if (!may_be(side->type, *found)) return CUDA_ERROR_INVALID_VALUE;
  if (!found->is_pageable()) side->address = found->gpu_address - first;
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
