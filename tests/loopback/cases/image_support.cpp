// SPDX-License-Identifier: Apache-2.0
#include "image_support.h"

__asm__(
    ".section .rodata\n"
    "images_ptx_begin:\n"
    ".incbin \"" IMAGES_PTX
    "\"\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char images_ptx_begin[];

Images::Images() { CU(cuModuleLoadData(&module, images_ptx_begin)); }
Images::~Images() { cuModuleUnload(module); }

CUfunction Images::function(const char* name) const {
  CUfunction function = nullptr;
  CU(cuModuleGetFunction(&function, module, name));
  return function;
}

CUDA_RESOURCE_DESC resource(CUarray array) {
  CUDA_RESOURCE_DESC r{};
  r.resType = CU_RESOURCE_TYPE_ARRAY;
  r.res.array.hArray = array;
  return r;
}

CUDA_TEXTURE_DESC sampler(CUaddress_mode mode, CUfilter_mode filter, unsigned flags) {
  CUDA_TEXTURE_DESC t{};
  std::fill_n(t.addressMode, 3, mode);
  t.filterMode = filter;
  t.flags = flags;
  return t;
}

Texture::Texture(const CUDA_RESOURCE_DESC& from, const CUDA_TEXTURE_DESC& how,
                 const CUDA_RESOURCE_VIEW_DESC* view) {
  CU(cuTexObjectCreate(&handle, &from, &how, view));
}
Texture::~Texture() { cuTexObjectDestroy(handle); }

std::vector<float> reds(const std::vector<Vector>& texels) {
  std::vector<float> result;
  for (const Vector& texel : texels) result.push_back(texel.x);
  return result;
}
