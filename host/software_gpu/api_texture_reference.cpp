// SPDX-License-Identifier: Apache-2.0
// Texture and surface references. A launch sees what they are bound to when it is submitted.
#include <algorithm>

#include "api.h"
#include "texture_reference.h"

using namespace software_gpu;

namespace {

constexpr unsigned REFERENCE_FLAGS = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                                     CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION;

/// Run `change` on the reference, locked.
template <class Change>
CUresult with(CUtexref handle, Change change) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto reference = Driver::instance().texture_references.find(handle);
  if (!reference) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(reference->mutex);
  return change(*reference);
}

template <class T, class Get>
CUresult give(T* to, CUtexref handle, Get get) {
  return with(handle, [&](const TextureReference& reference) {
    if (!to) return CUDA_ERROR_INVALID_VALUE;
    *to = get(reference);
    return CUDA_SUCCESS;
  });
}

CUresult bind(TextureReference& reference, const CUDA_RESOURCE_DESC& resource) {
  Image image;
  // Whether the sampler fits is known when a kernel is launched: it may change until then.
  CUDA_TEXTURE_DESC any{};
  any.flags = CU_TRSF_NORMALIZED_COORDINATES;
  RETURN_IF_FAILED(make_texture(resource, any, nullptr, &image));
  reference.resource = resource;
  reference.is_bound = true;
  return CUDA_SUCCESS;
}

/// What a reference is bound to, if that is of this type.
template <class T, class Get>
CUresult give_resource(T* to, CUtexref handle, CUresourcetype type, Get get) {
  return with(handle, [&](const TextureReference& reference) {
    if (!to || !reference.is_bound || reference.resource.resType != type)
      return CUDA_ERROR_INVALID_VALUE;
    *to = get(reference.resource);
    return CUDA_SUCCESS;
  });
}

template <class T>
CUresult find_reference(
    CUmodule module_handle, const char* name, const void** out,
    std::map<std::string, std::shared_ptr<T>, std::less<>> LoadedModule::* references) {
  RETURN_IF_FAILED(enter_without_context());
  const auto module = Driver::instance().modules.find(module_handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!name || !*name) return CUDA_ERROR_INVALID_VALUE;
  const auto& all = (*module).*references;
  const auto found = all.find(std::string_view(name));
  if (found == all.end()) return CUDA_ERROR_NOT_FOUND;
  *out = found->second.get();
  return CUDA_SUCCESS;
}

}  // namespace

SOFTWARE_GPU_API cuModuleGetTexRef(CUtexref* out, CUmodule module, const char* name) {
  const void* found = nullptr;
  RETURN_IF_FAILED(enter_without_error());
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_reference(module, name, &found, &LoadedModule::texture_references));
  *out = reinterpret_cast<CUtexref>(const_cast<void*>(found));
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuModuleGetSurfRef(CUsurfref* out, CUmodule module, const char* name) {
  const void* found = nullptr;
  RETURN_IF_FAILED(enter_without_error());
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_reference(module, name, &found, &LoadedModule::surface_references));
  *out = reinterpret_cast<CUsurfref>(const_cast<void*>(found));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuTexRefCreate(CUtexref* out) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  auto reference = std::make_shared<TextureReference>(*context);
  *out = reinterpret_cast<CUtexref>(reference.get());
  Driver::instance().texture_references.add(std::move(reference));
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuTexRefDestroy(CUtexref handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  Driver& driver = Driver::instance();
  const auto reference = driver.texture_references.find(handle);
  if (!reference) return CUDA_ERROR_INVALID_HANDLE;
  // Those of a module go with it; to destroy one is no error (driver 580).
  if (reference->address == 0) driver.texture_references.take(handle);
  return CUDA_SUCCESS;
}

/// A launch sees its module's references anyway.
SOFTWARE_GPU_API cuParamSetTexRef(CUfunction function, int, CUtexref handle) {
  if (!Driver::instance().kernels.find(function)) return CUDA_ERROR_INVALID_HANDLE;
  return with(handle, [](const TextureReference&) { return CUDA_SUCCESS; });
}

SOFTWARE_GPU_API cuTexRefSetArray(CUtexref handle, CUarray array, unsigned flags) {
  return with(handle, [&](TextureReference& reference) {
    const auto bound = Driver::instance().arrays.find(array);
    if (!bound) return CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~CU_TRSA_OVERRIDE_FORMAT) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    RETURN_IF_FAILED(bind(reference, resource));
    reference.format = bound->descriptor.Format;
    reference.n_channels = bound->descriptor.NumChannels;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray array,
                                           unsigned flags) {
  return with(handle, [&](TextureReference& reference) {
    const auto bound = Driver::instance().mipmapped_arrays.find(array);
    if (!bound) return CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~CU_TRSA_OVERRIDE_FORMAT) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = array;
    RETURN_IF_FAILED(bind(reference, resource));
    reference.format = bound->descriptor.Format;
    reference.n_channels = bound->descriptor.NumChannels;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetAddress_v2(size_t* offset, CUtexref handle, CUdeviceptr pointer,
                                       size_t n_bytes) {
  return with(handle, [&](TextureReference& reference) {
    const size_t beyond =
        pointer % static_cast<size_t>(image_limit(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
    if (beyond != 0 && !offset) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {pointer - beyond, reference.format, reference.n_channels,
                           n_bytes + beyond};
    RETURN_IF_FAILED(bind(reference, resource));
    if (offset) *offset = beyond;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetAddress2D_v3(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* d,
                                         CUdeviceptr pointer, size_t pitch) {
  return with(handle, [&](TextureReference& reference) {
    if (!d) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_PITCH2D;
    resource.res.pitch2D = {pointer, d->Format, d->NumChannels, d->Width, d->Height, pitch};
    RETURN_IF_FAILED(bind(reference, resource));
    reference.format = d->Format;
    reference.n_channels = d->NumChannels;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetFormat(CUtexref handle, CUarray_format format, int n_channels) {
  return with(handle, [&](TextureReference& reference) {
    Format known;
    RETURN_IF_FAILED(find_format(format, static_cast<unsigned>(n_channels), &known));
    reference.format = format;
    reference.n_channels = static_cast<unsigned>(n_channels);
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetAddressMode(CUtexref handle, int dimension, CUaddress_mode mode) {
  return with(handle, [&](TextureReference& reference) {
    if (dimension < 0 || dimension > 2 || mode > CU_TR_ADDRESS_MODE_BORDER)
      return CUDA_ERROR_INVALID_VALUE;
    reference.texture.addressMode[dimension] = mode;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetFilterMode(CUtexref handle, CUfilter_mode mode) {
  return with(handle, [&](TextureReference& reference) {
    if (mode > CU_TR_FILTER_MODE_LINEAR) return CUDA_ERROR_INVALID_VALUE;
    reference.texture.filterMode = mode;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetMipmapFilterMode(CUtexref handle, CUfilter_mode mode) {
  return with(handle, [&](TextureReference& reference) {
    if (mode > CU_TR_FILTER_MODE_LINEAR) return CUDA_ERROR_INVALID_VALUE;
    reference.texture.mipmapFilterMode = mode;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetMipmapLevelBias(CUtexref handle, float bias) {
  return with(handle, [&](TextureReference& reference) {
    reference.texture.mipmapLevelBias = bias;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetMipmapLevelClamp(CUtexref handle, float min, float max) {
  return with(handle, [&](TextureReference& reference) {
    reference.texture.minMipmapLevelClamp = min;
    reference.texture.maxMipmapLevelClamp = max;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetMaxAnisotropy(CUtexref handle, unsigned max) {
  return with(handle, [&](TextureReference& reference) {
    if (max > 1) return CUDA_ERROR_NOT_SUPPORTED;
    reference.texture.maxAnisotropy = max;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetBorderColor(CUtexref handle, float* color) {
  return with(handle, [&](TextureReference& reference) {
    if (!color) return CUDA_ERROR_INVALID_VALUE;
    std::copy_n(color, 4, reference.texture.borderColor);
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefSetFlags(CUtexref handle, unsigned flags) {
  return with(handle, [&](TextureReference& reference) {
    if (flags & ~REFERENCE_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    reference.texture.flags = flags;
    return CUDA_SUCCESS;
  });
}

SOFTWARE_GPU_API cuTexRefGetAddress_v2(CUdeviceptr* pointer, CUtexref handle) {
  return with(handle, [&](const TextureReference& reference) {
    const CUDA_RESOURCE_DESC& resource = reference.resource;
    const bool is_rows = resource.resType == CU_RESOURCE_TYPE_PITCH2D;
    if (!pointer || !reference.is_bound ||
        (!is_rows && resource.resType != CU_RESOURCE_TYPE_LINEAR))
      return CUDA_ERROR_INVALID_VALUE;
    *pointer = is_rows ? resource.res.pitch2D.devPtr : resource.res.linear.devPtr;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefGetArray(CUarray* array, CUtexref handle) {
  return give_resource(array, handle, CU_RESOURCE_TYPE_ARRAY,
                       [](const CUDA_RESOURCE_DESC& r) { return r.res.array.hArray; });
}
SOFTWARE_GPU_API cuTexRefGetMipmappedArray(CUmipmappedArray* array, CUtexref handle) {
  return give_resource(array, handle, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
                       [](const CUDA_RESOURCE_DESC& r) { return r.res.mipmap.hMipmappedArray; });
}
SOFTWARE_GPU_API cuTexRefGetAddressMode(CUaddress_mode* mode, CUtexref handle, int dimension) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  return give(mode, handle,
              [=](const TextureReference& r) { return r.texture.addressMode[dimension]; });
}
SOFTWARE_GPU_API cuTexRefGetFilterMode(CUfilter_mode* mode, CUtexref handle) {
  return give(mode, handle, [](const TextureReference& r) { return r.texture.filterMode; });
}
SOFTWARE_GPU_API cuTexRefGetFormat(CUarray_format* format, int* n_channels, CUtexref handle) {
  return with(handle, [&](const TextureReference& reference) {
    if (format) *format = reference.format;
    if (n_channels) *n_channels = static_cast<int>(reference.n_channels);
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefGetMipmapFilterMode(CUfilter_mode* mode, CUtexref handle) {
  return give(mode, handle, [](const TextureReference& r) { return r.texture.mipmapFilterMode; });
}
SOFTWARE_GPU_API cuTexRefGetMipmapLevelBias(float* bias, CUtexref handle) {
  return give(bias, handle, [](const TextureReference& r) { return r.texture.mipmapLevelBias; });
}
SOFTWARE_GPU_API cuTexRefGetMipmapLevelClamp(float* min, float* max, CUtexref handle) {
  return with(handle, [&](const TextureReference& reference) {
    if (!min || !max) return CUDA_ERROR_INVALID_VALUE;
    *min = reference.texture.minMipmapLevelClamp;
    *max = reference.texture.maxMipmapLevelClamp;
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefGetMaxAnisotropy(int* max, CUtexref handle) {
  return give(max, handle,
              [](const TextureReference& r) { return static_cast<int>(r.texture.maxAnisotropy); });
}
SOFTWARE_GPU_API cuTexRefGetBorderColor(float* color, CUtexref handle) {
  return with(handle, [&](const TextureReference& reference) {
    if (!color) return CUDA_ERROR_INVALID_VALUE;
    std::copy_n(reference.texture.borderColor, 4, color);
    return CUDA_SUCCESS;
  });
}
SOFTWARE_GPU_API cuTexRefGetFlags(unsigned* flags, CUtexref handle) {
  return give(flags, handle, [](const TextureReference& r) { return r.texture.flags; });
}

SOFTWARE_GPU_API cuSurfRefSetArray(CUsurfref handle, CUarray array, unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto reference = Driver::instance().surface_references.find(handle);
  const auto bound = Driver::instance().arrays.find(array);
  if (!reference || !bound) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != 0 || !(bound->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST))
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  Image image;
  RETURN_IF_FAILED(make_surface(resource, &image));
  reference->array = array;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuSurfRefGetArray(CUarray* array, CUsurfref handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto reference = Driver::instance().surface_references.find(handle);
  if (!reference) return CUDA_ERROR_INVALID_HANDLE;
  if (!array || !Driver::instance().arrays.find(reference->array)) return CUDA_ERROR_INVALID_VALUE;
  *array = reference->array;
  return CUDA_SUCCESS;
}
