// SPDX-License-Identifier: Apache-2.0
// Texture and surface objects.
#include "api.h"
#include "image.h"

using namespace software_gpu;

namespace {

/// The object of a handle; null: none of this kind.
std::shared_ptr<const ImageObject> find(uint64_t handle, bool is_surface) {
  auto object = Driver::instance().images.find(handle);
  return object && object->image.is_surface == is_surface ? object : nullptr;
}

/// What is no object, or one of the other kind, stays so: no error (driver 580).
CUresult destroy(uint64_t handle, bool is_surface) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (find(handle, is_surface)) Driver::instance().images.remove(handle);
  return CUDA_SUCCESS;
}

template <class T>
CUresult give(T* to, uint64_t handle, bool is_surface, T ImageObject::* member) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto object = find(handle, is_surface);
  if (!object || !to) return CUDA_ERROR_INVALID_VALUE;
  *to = (*object).*member;
  return CUDA_SUCCESS;
}

}  // namespace

SOFTWARE_GPU_API cuTexObjectCreate(CUtexObject* handle, const CUDA_RESOURCE_DESC* resource,
                                   const CUDA_TEXTURE_DESC* texture,
                                   const CUDA_RESOURCE_VIEW_DESC* view) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (!handle || !resource || !texture) return CUDA_ERROR_INVALID_VALUE;
  auto object = std::make_shared<ImageObject>(ImageObject{*context, *resource, *texture});
  object->has_view = view != nullptr;
  if (view) object->view = *view;
  RETURN_IF_FAILED(make_texture(*resource, *texture, view, &object->image));
  *handle = Driver::instance().images.add(std::move(object));
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuTexObjectDestroy(CUtexObject handle) { return destroy(handle, false); }
SOFTWARE_GPU_API cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject handle) {
  return give(resource, handle, false, &ImageObject::resource);
}
SOFTWARE_GPU_API cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* texture, CUtexObject handle) {
  return give(texture, handle, false, &ImageObject::texture);
}
SOFTWARE_GPU_API cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject handle) {
  const auto object = find(handle, false);
  if (object && !object->has_view) return CUDA_ERROR_INVALID_VALUE;
  return give(view, handle, false, &ImageObject::view);
}

SOFTWARE_GPU_API cuSurfObjectCreate(CUsurfObject* handle, const CUDA_RESOURCE_DESC* resource) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (!handle || !resource) return CUDA_ERROR_INVALID_VALUE;
  auto object = std::make_shared<ImageObject>(ImageObject{*context, *resource});
  RETURN_IF_FAILED(make_surface(*resource, &object->image));
  *handle = Driver::instance().images.add(std::move(object));
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuSurfObjectDestroy(CUsurfObject handle) { return destroy(handle, true); }
SOFTWARE_GPU_API cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject handle) {
  return give(resource, handle, true, &ImageObject::resource);
}
