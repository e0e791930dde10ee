// SPDX-License-Identifier: Apache-2.0
#include "copy_box.h"

namespace kvgpu::worker {

namespace {

// [first, end) of the bytes that a side of the copy touches, from its address on. What a pitch or
// height of 0 stands for the driver decides: the guest's library sends none.
bool touched(const wire::MemcpySide& side, const wire::MemcpyNode& box, uint64_t* first,
             uint64_t* end) {
  const auto place = [&](uint64_t z, uint64_t y, uint64_t x, uint64_t* bytes) {
    uint64_t row;
    return !__builtin_mul_overflow(z, side.height, &row) && !__builtin_add_overflow(row, y, &row) &&
           !__builtin_mul_overflow(row, side.pitch_bytes, &row) &&
           !__builtin_add_overflow(row, x, bytes);
  };
  uint64_t last_z, last_y, last_x;
  return side.pitch_bytes != 0 && side.height != 0 && place(side.z, side.y, side.x_bytes, first) &&
         !__builtin_add_overflow(side.z, box.depth - 1, &last_z) &&
         !__builtin_add_overflow(side.y, box.height - 1, &last_y) &&
         !__builtin_add_overflow(side.x_bytes, box.width_bytes, &last_x) &&
         place(last_z, last_y, last_x, end) && *first < *end;
}

bool may_touch(const Session& session, const wire::MemcpySide& side, const wire::MemcpyNode& box,
               CUarray* array) {
  *array = nullptr;
  if (side.type == CU_MEMORYTYPE_ARRAY) return session.handles.get(side.address, array);
  if (side.type != CU_MEMORYTYPE_HOST && side.type != CU_MEMORYTYPE_DEVICE &&
      side.type != CU_MEMORYTYPE_UNIFIED) {
    return false;
  }
  if (box.width_bytes == 0 || box.height == 0 || box.depth == 0) return true;
  uint64_t first, end, begin;
  return touched(side, box, &first, &end) && !__builtin_add_overflow(side.address, first, &begin) &&
         session.is_guest_memory(begin, end - first);
}

uint64_t place_of(const Session& session, CUmemorytype type, const void* host, CUdeviceptr device,
                  CUarray array) {
  if (type == CU_MEMORYTYPE_ARRAY) return session.handles.handle_of(array);
  return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
}

}  // namespace

bool read_box(const Session& session, const wire::MemcpyNode& box, CUDA_MEMCPY3D* copy) {
  CUDA_MEMCPY3D& p = *copy;
  if (!may_touch(session, box.dst, box, &p.dstArray) ||
      !may_touch(session, box.src, box, &p.srcArray)) {
    return false;
  }
  p.dstMemoryType = static_cast<CUmemorytype>(box.dst.type);
  p.dstHost = reinterpret_cast<void*>(box.dst.address);
  p.dstDevice = box.dst.address;
  p.dstXInBytes = box.dst.x_bytes;
  p.dstY = box.dst.y;
  p.dstZ = box.dst.z;
  p.dstPitch = box.dst.pitch_bytes;
  p.dstHeight = box.dst.height;
  p.srcMemoryType = static_cast<CUmemorytype>(box.src.type);
  p.srcHost = reinterpret_cast<const void*>(box.src.address);
  p.srcDevice = box.src.address;
  p.srcXInBytes = box.src.x_bytes;
  p.srcY = box.src.y;
  p.srcZ = box.src.z;
  p.srcPitch = box.src.pitch_bytes;
  p.srcHeight = box.src.height;
  p.WidthInBytes = box.width_bytes;
  p.Height = box.height;
  p.Depth = box.depth;
  return true;
}

wire::MemcpyNode describe_box(const Session& session, const CUDA_MEMCPY3D& p) {
  return {{place_of(session, p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray), p.dstXInBytes,
           p.dstY, p.dstZ, p.dstPitch, p.dstHeight, static_cast<uint32_t>(p.dstMemoryType), 0},
          {place_of(session, p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray), p.srcXInBytes,
           p.srcY, p.srcZ, p.srcPitch, p.srcHeight, static_cast<uint32_t>(p.srcMemoryType), 0},
          p.WidthInBytes,
          p.Height,
          p.Depth};
}

}  // namespace kvgpu::worker
