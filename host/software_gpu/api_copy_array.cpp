// SPDX-License-Identifier: Apache-2.0
// Copies in two and three dimensions, and those of bytes of one-dimensional arrays.
#include "api.h"

using namespace software_gpu;

namespace {

CUDA_MEMCPY3D one_plane(const CUDA_MEMCPY2D& p) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = p.dstMemoryType;
  copy.dstHost = p.dstHost;
  copy.dstDevice = p.dstDevice;
  copy.dstArray = p.dstArray;
  copy.dstXInBytes = p.dstXInBytes;
  copy.dstY = p.dstY;
  copy.dstPitch = p.dstPitch;
  copy.srcMemoryType = p.srcMemoryType;
  copy.srcHost = p.srcHost;
  copy.srcDevice = p.srcDevice;
  copy.srcArray = p.srcArray;
  copy.srcXInBytes = p.srcXInBytes;
  copy.srcY = p.srcY;
  copy.srcPitch = p.srcPitch;
  copy.WidthInBytes = p.WidthInBytes;
  copy.Height = p.Height;
  copy.Depth = 1;
  return copy;
}

/// On the legacy stream, and done when it returns.
CUresult copy_now(const CUDA_MEMCPY3D& p) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(copy_rows(p, CU_STREAM_LEGACY));
  context->legacy->queue->end().wait();
  return finish_wait(*context);
}

/// An end of a copy of bytes.
struct End {
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  const void* host = nullptr;
  CUdeviceptr device = 0;
  CUarray array = nullptr;
  size_t offset = 0;
};
End host(const void* pointer) { return {CU_MEMORYTYPE_HOST, pointer}; }
End device(CUdeviceptr pointer) { return {CU_MEMORYTYPE_DEVICE, nullptr, pointer}; }
End array(CUarray handle, size_t offset) {
  return {CU_MEMORYTYPE_ARRAY, nullptr, 0, handle, offset};
}

CUDA_MEMCPY3D bytes(const End& to, const End& from, size_t n_bytes) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = to.type;
  copy.dstHost = const_cast<void*>(to.host);
  copy.dstDevice = to.device;
  copy.dstArray = to.array;
  copy.dstXInBytes = to.offset;
  copy.srcMemoryType = from.type;
  copy.srcHost = from.host;
  copy.srcDevice = from.device;
  copy.srcArray = from.array;
  copy.srcXInBytes = from.offset;
  copy.WidthInBytes = n_bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

}  // namespace

SOFTWARE_GPU_API cuMemcpy2D_v2(const CUDA_MEMCPY2D* p) {
  return p ? copy_now(one_plane(*p)) : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* p) { return cuMemcpy2D_v2(p); }
SOFTWARE_GPU_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* p, CUstream stream) {
  return p ? copy_rows(one_plane(*p), stream) : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuMemcpy3D_v2(const CUDA_MEMCPY3D* p) {
  return p ? copy_now(*p) : CUDA_ERROR_INVALID_VALUE;
}
SOFTWARE_GPU_API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* p, CUstream stream) {
  return p ? copy_rows(*p, stream) : CUDA_ERROR_INVALID_VALUE;
}

SOFTWARE_GPU_API cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t n) {
  return copy_now(bytes(array(to, offset), host(from), n));
}
SOFTWARE_GPU_API cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t n) {
  return copy_now(bytes(host(to), array(from, offset), n));
}
SOFTWARE_GPU_API cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t n) {
  return copy_now(bytes(array(to, offset), device(from), n));
}
SOFTWARE_GPU_API cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t n) {
  return copy_now(bytes(device(to), array(from, offset), n));
}
SOFTWARE_GPU_API cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                                 size_t n) {
  return copy_now(bytes(array(to, to_offset), array(from, from_offset), n));
}
SOFTWARE_GPU_API cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t n,
                                      CUstream stream) {
  return copy_rows(bytes(array(to, offset), host(from), n), stream);
}
SOFTWARE_GPU_API cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t n,
                                      CUstream stream) {
  return copy_rows(bytes(host(to), array(from, offset), n), stream);
}
