// SPDX-License-Identifier: Apache-2.0
// Texture and surface objects. The number that stands for one is the driver's own, which kernels
// get as a parameter: whether there is such an object the worker knows.
#include <cstring>

#include "call.h"
#include "generated/api.gen.h"

namespace kvgpu::guest {

namespace {

// What is no resource is the driver's to say; of an array the worker needs to know which.
CUresult describe(const CUDA_RESOURCE_DESC& desc, wire::ImageResource* out) {
  *out = {static_cast<uint32_t>(desc.resType), desc.flags, 0, 0, 0, 0, 0, 0};
  switch (desc.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      out->object = to_wire(desc.res.array.hArray);
      return find(desc.res.array.hArray) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      out->object = to_wire(desc.res.mipmap.hMipmappedArray);
      return find(desc.res.mipmap.hMipmappedArray) == nullptr ? CUDA_ERROR_INVALID_VALUE
                                                              : CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = desc.res.linear;
      out->object = linear.devPtr;
      out->format = static_cast<uint32_t>(linear.format);
      out->n_channels = linear.numChannels;
      out->width = linear.sizeInBytes;
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& pitched = desc.res.pitch2D;
      out->object = pitched.devPtr;
      out->format = static_cast<uint32_t>(pitched.format);
      out->n_channels = pitched.numChannels;
      out->width = pitched.width;
      out->height = pitched.height;
      out->pitch_bytes = pitched.pitchInBytes;
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUDA_RESOURCE_DESC described(const wire::ImageResource& resource) {
  CUDA_RESOURCE_DESC desc{};
  desc.resType = static_cast<CUresourcetype>(resource.type);
  desc.flags = resource.flags;
  const auto format = static_cast<CUarray_format>(resource.format);
  switch (desc.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      desc.res.array.hArray = from_wire<CUarray>(resource.object);
      break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      desc.res.mipmap.hMipmappedArray = from_wire<CUmipmappedArray>(resource.object);
      break;
    case CU_RESOURCE_TYPE_LINEAR:
      desc.res.linear = {resource.object, format, resource.n_channels, resource.width};
      break;
    case CU_RESOURCE_TYPE_PITCH2D:
      desc.res.pitch2D = {resource.object, format,          resource.n_channels,
                          resource.width,  resource.height, resource.pitch_bytes};
      break;
  }
  return desc;
}

template <typename Body>
CUresult create(unsigned long long* object, wire::Op op, const Call& call, const Body& body) {
  wire::Value64 out;
  const CUresult result = call.sync(op, body, &out);
  if (result == CUDA_SUCCESS) *object = out.value;
  return result;
}

CUresult destroy(wire::Op op, uint64_t object) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  return call.sync(op, wire::ImageObject{call.context(), object});
}

template <typename Out>
CUresult ask(wire::Op op, uint64_t object, Out* out) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  return call.sync(op, wire::ImageObject{call.context(), object}, out);
}

CUresult get_resource(wire::Op op, CUDA_RESOURCE_DESC* desc, uint64_t object) {
  if (desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::ImageResource resource;
  const CUresult result = ask(op, object, &resource);
  if (result == CUDA_SUCCESS) *desc = described(resource);
  return result;
}

// A description that is plain data, as the wire's words.
template <typename Words, typename Desc>
CUresult get_words(wire::Op op, Desc* desc, uint64_t object) {
  static_assert(sizeof(Words) == sizeof(Desc));
  if (desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Words out;
  const CUresult result = ask(op, object, &out);
  if (result == CUDA_SUCCESS) std::memcpy(desc, &out, sizeof out);
  return result;
}

}  // namespace

CUresult tex_object_create(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                           const CUDA_TEXTURE_DESC* pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pTexObject == nullptr || pResDesc == nullptr || pTexDesc == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wire::TexObjectCreate body{call.context(), {}, {}, pResViewDesc != nullptr, 0, {}};
  if (const CUresult bad = describe(*pResDesc, &body.resource)) return bad;
  static_assert(sizeof body.sampler == sizeof *pTexDesc);
  static_assert(sizeof body.view == sizeof *pResViewDesc);
  std::memcpy(&body.sampler, pTexDesc, sizeof body.sampler);
  if (pResViewDesc != nullptr) std::memcpy(&body.view, pResViewDesc, sizeof body.view);
  return create(pTexObject, wire::Op::cuTexObjectCreate, call, body);
}

CUresult surf_object_create(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pSurfObject == nullptr || pResDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::SurfObjectCreate body{call.context(), {}};
  if (const CUresult bad = describe(*pResDesc, &body.resource)) return bad;
  return create(pSurfObject, wire::Op::cuSurfObjectCreate, call, body);
}

CUresult tex_object_destroy(CUtexObject texObject) {
  return destroy(wire::Op::cuTexObjectDestroy, texObject);
}
CUresult surf_object_destroy(CUsurfObject surfObject) {
  return destroy(wire::Op::cuSurfObjectDestroy, surfObject);
}

CUresult tex_object_get_resource_desc(CUDA_RESOURCE_DESC* pResDesc, CUtexObject texObject) {
  return get_resource(wire::Op::cuTexObjectGetResourceDesc, pResDesc, texObject);
}
CUresult surf_object_get_resource_desc(CUDA_RESOURCE_DESC* pResDesc, CUsurfObject surfObject) {
  return get_resource(wire::Op::cuSurfObjectGetResourceDesc, pResDesc, surfObject);
}
CUresult tex_object_get_texture_desc(CUDA_TEXTURE_DESC* pTexDesc, CUtexObject texObject) {
  return get_words<wire::Sampler>(wire::Op::cuTexObjectGetTextureDesc, pTexDesc, texObject);
}
CUresult tex_object_get_resource_view_desc(CUDA_RESOURCE_VIEW_DESC* pResViewDesc,
                                           CUtexObject texObject) {
  return get_words<wire::ImageView>(wire::Op::cuTexObjectGetResourceViewDesc, pResViewDesc,
                                    texObject);
}

}  // namespace kvgpu::guest
