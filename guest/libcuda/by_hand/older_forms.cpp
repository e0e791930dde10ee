// SPDX-License-Identifier: Apache-2.0
// The forms of CUDA before 3.2, whose addresses and sizes have 32 bits. Driver 580 takes them in
// contexts that cuCtxCreate of that time has made; in every other one, and here there are no
// others, they answer as below.
#include "call.h"
#include "generated/api.gen.h"

namespace kvgpu::guest {

namespace {

using Out = unsigned int*;  // CUdeviceptr_v1* is the same

CUresult wrong_context(Out first = nullptr, Out second = nullptr) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  for (const Out out : {first, second}) {
    if (out != nullptr) *out = 0;
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

template <typename Handle>
CUresult wrong_context_of(Handle handle, Out first = nullptr, Out second = nullptr) {
  return find(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : wrong_context(first, second);
}

}  // namespace

CUresult mem_alloc(Out dptr, unsigned) { return wrong_context(dptr); }
CUresult mem_alloc_pitch(Out dptr, Out pitch, unsigned, unsigned, unsigned) {
  return wrong_context(dptr, pitch);
}
CUresult mem_alloc_host(void**, unsigned) { return wrong_context(); }
CUresult mem_free(CUdeviceptr_v1) { return wrong_context(); }
CUresult mem_get_info(Out free, Out total) { return wrong_context(free, total); }
CUresult mem_host_get_device_pointer(Out dptr, void*, unsigned) { return wrong_context(dptr); }
CUresult module_get_global(Out dptr, Out bytes, CUmodule hmod, const char*) {
  return wrong_context_of(hmod, dptr, bytes);
}
CUresult mem_get_address_range(Out base, Out size, CUdeviceptr_v1) {
  const CUresult result = wrong_context(base, size);
  const bool asks_nothing = base == nullptr && size == nullptr;
  return asks_nothing && result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;
}

CUresult memcpy_htod(CUdeviceptr_v1, const void*, unsigned) { return wrong_context(); }
CUresult memcpy_dtoh(void*, CUdeviceptr_v1, unsigned) { return wrong_context(); }
CUresult memcpy_dtod(CUdeviceptr_v1, CUdeviceptr_v1, unsigned) { return wrong_context(); }
CUresult memcpy_htod_async(CUdeviceptr_v1, const void*, unsigned, CUstream) {
  return wrong_context();
}
CUresult memcpy_dtoh_async(void*, CUdeviceptr_v1, unsigned, CUstream) { return wrong_context(); }
CUresult memcpy_dtod_async(CUdeviceptr_v1, CUdeviceptr_v1, unsigned, CUstream) {
  return wrong_context();
}
CUresult memcpy_dtoa(CUarray, unsigned, CUdeviceptr_v1, unsigned) { return wrong_context(); }
CUresult memcpy_atod(CUdeviceptr_v1, CUarray, unsigned, unsigned) { return wrong_context(); }
CUresult memcpy_htoa(CUarray, unsigned, const void*, unsigned) { return wrong_context(); }
CUresult memcpy_atoh(void*, CUarray, unsigned, unsigned) { return wrong_context(); }
CUresult memcpy_atoa(CUarray, unsigned, CUarray, unsigned, unsigned) { return wrong_context(); }
CUresult memcpy_htoa_async(CUarray, unsigned, const void*, unsigned, CUstream) {
  return wrong_context();
}
CUresult memcpy_atoh_async(void*, CUarray, unsigned, unsigned, CUstream) { return wrong_context(); }
CUresult memcpy_2d(const CUDA_MEMCPY2D_v1*) { return wrong_context(); }
CUresult memcpy_2d_unaligned(const CUDA_MEMCPY2D_v1*) { return wrong_context(); }
CUresult memcpy_2d_async(const CUDA_MEMCPY2D_v1*, CUstream) { return wrong_context(); }
CUresult memcpy_3d(const CUDA_MEMCPY3D_v1*) { return wrong_context(); }
CUresult memcpy_3d_async(const CUDA_MEMCPY3D_v1*, CUstream) { return wrong_context(); }

CUresult memset_d8(CUdeviceptr_v1, unsigned char, unsigned) { return wrong_context(); }
CUresult memset_d16(CUdeviceptr_v1, unsigned short, unsigned) { return wrong_context(); }
CUresult memset_d32(CUdeviceptr_v1, unsigned, unsigned) { return wrong_context(); }
CUresult memset_d2d8(CUdeviceptr_v1, unsigned, unsigned char, unsigned, unsigned) {
  return wrong_context();
}
CUresult memset_d2d16(CUdeviceptr_v1, unsigned, unsigned short, unsigned, unsigned) {
  return wrong_context();
}
CUresult memset_d2d32(CUdeviceptr_v1, unsigned, unsigned, unsigned, unsigned) {
  return wrong_context();
}

CUresult array_create(CUarray*, const CUDA_ARRAY_DESCRIPTOR_v1*) { return wrong_context(); }
CUresult array_3d_create(CUarray*, const CUDA_ARRAY3D_DESCRIPTOR_v1*) { return wrong_context(); }
CUresult array_get_descriptor(CUDA_ARRAY_DESCRIPTOR_v1*, CUarray array) {
  return wrong_context_of(array);
}
CUresult array_3d_get_descriptor(CUDA_ARRAY3D_DESCRIPTOR_v1*, CUarray array) {
  return wrong_context_of(array);
}
CUresult tex_ref_set_address(Out offset, CUtexref reference, CUdeviceptr_v1, unsigned) {
  return wrong_context_of(reference, offset);
}
CUresult tex_ref_set_address_2d(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR_v1*, CUdeviceptr_v1,
                                unsigned) {
  return wrong_context_of(reference);
}
CUresult tex_ref_get_address(Out dptr, CUtexref reference) {
  return wrong_context_of(reference, dptr);
}

}  // namespace kvgpu::guest
