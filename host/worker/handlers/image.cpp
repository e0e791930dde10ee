// SPDX-License-Identifier: Apache-2.0
// Texture and surface objects.
#include <cstring>

#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/image_calls.h"

namespace kvgpu::worker {

namespace {

// False: it names an array that is not the guest's. Addresses are the GPU's to check: what a kernel
// reaches through an object it reaches without, too.
bool read_resource(const Session& session, const wire::ImageResource& from,
                   CUDA_RESOURCE_DESC* to) {
  *to = {};
  to->resType = static_cast<CUresourcetype>(from.type);
  to->flags = from.flags;
  const auto format = static_cast<CUarray_format>(from.format);
  switch (from.type) {
    case CU_RESOURCE_TYPE_ARRAY:
      return session.handles.get(from.object, &to->res.array.hArray);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      return session.handles.get(from.object, &to->res.mipmap.hMipmappedArray);
    case CU_RESOURCE_TYPE_LINEAR:
      to->res.linear = {from.object, format, from.n_channels, from.width};
      return true;
    case CU_RESOURCE_TYPE_PITCH2D:
      to->res.pitch2D = {from.object, format,      from.n_channels,
                         from.width,  from.height, from.pitch_bytes};
      return true;
    default:
      return false;
  }
}

wire::ImageResource describe(const Session& session, const CUDA_RESOURCE_DESC& desc) {
  wire::ImageResource out{static_cast<uint32_t>(desc.resType), desc.flags, 0, 0, 0, 0, 0, 0};
  switch (desc.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      out.object = session.handles.handle_of(desc.res.array.hArray);
      break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      out.object = session.handles.handle_of(desc.res.mipmap.hMipmappedArray);
      break;
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = desc.res.linear;
      out.object = linear.devPtr;
      out.format = static_cast<uint32_t>(linear.format);
      out.n_channels = linear.numChannels;
      out.width = linear.sizeInBytes;
      break;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& pitched = desc.res.pitch2D;
      out.object = pitched.devPtr;
      out.format = static_cast<uint32_t>(pitched.format);
      out.n_channels = pitched.numChannels;
      out.width = pitched.width;
      out.height = pitched.height;
      out.pitch_bytes = pitched.pitchInBytes;
      break;
    }
  }
  return out;
}

// Driver 580: to destroy what is no object, or one of the other kind, does nothing and is no error.
template <typename Destroy>
CUresult destroy(Session& session, const Task& task, ImageKind kind, Destroy driver_call) {
  wire::ImageObject body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  // Forgotten first: the driver may give the number to another thread's object at once.
  if (!session.images.remove(body.context, body.object, kind)) return CUDA_SUCCESS;
  const CUresult result = driver_call(body.object);
  if (result != CUDA_SUCCESS) session.images.add(body.context, body.object, kind);
  return result;
}

template <typename Desc, typename Get>
CUresult ask(Session& session, const Task& task, ImageKind kind, Desc* desc, Get driver_call) {
  wire::ImageObject body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  if (!session.images.has(body.context, body.object, kind)) return CUDA_ERROR_INVALID_VALUE;
  return driver_call(desc, body.object);
}

}  // namespace

CUresult tex_object_create(Session& session, const Task& task, ReplyWriter& reply) {
  wire::TexObjectCreate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUDA_RESOURCE_DESC resource;
  if (!read_resource(session, body.resource, &resource)) return CUDA_ERROR_INVALID_VALUE;
  CUDA_TEXTURE_DESC texture;
  CUDA_RESOURCE_VIEW_DESC view;
  static_assert(sizeof texture == sizeof body.sampler && sizeof view == sizeof body.view);
  std::memcpy(&texture, &body.sampler, sizeof texture);
  std::memcpy(&view, &body.view, sizeof view);
  CUtexObject object = 0;
  const CUresult result = session.driver->cuTexObjectCreate(&object, &resource, &texture,
                                                            body.has_view != 0 ? &view : nullptr);
  if (result != CUDA_SUCCESS) return result;
  session.images.add(body.context, object, ImageKind::TEXTURE);
  reply.put(wire::Value64{object});
  return CUDA_SUCCESS;
}

CUresult surf_object_create(Session& session, const Task& task, ReplyWriter& reply) {
  wire::SurfObjectCreate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUDA_RESOURCE_DESC resource;
  if (!read_resource(session, body.resource, &resource)) return CUDA_ERROR_INVALID_VALUE;
  CUsurfObject object = 0;
  if (const CUresult bad = session.driver->cuSurfObjectCreate(&object, &resource)) return bad;
  session.images.add(body.context, object, ImageKind::SURFACE);
  reply.put(wire::Value64{object});
  return CUDA_SUCCESS;
}

CUresult tex_object_destroy(Session& session, const Task& task, ReplyWriter&) {
  return destroy(session, task, ImageKind::TEXTURE, session.driver->cuTexObjectDestroy);
}
CUresult surf_object_destroy(Session& session, const Task& task, ReplyWriter&) {
  return destroy(session, task, ImageKind::SURFACE, session.driver->cuSurfObjectDestroy);
}

CUresult tex_object_get_resource_desc(Session& session, const Task& task, ReplyWriter& reply) {
  CUDA_RESOURCE_DESC desc{};
  const CUresult result =
      ask(session, task, ImageKind::TEXTURE, &desc, session.driver->cuTexObjectGetResourceDesc);
  if (result == CUDA_SUCCESS) reply.put(describe(session, desc));
  return result;
}
CUresult surf_object_get_resource_desc(Session& session, const Task& task, ReplyWriter& reply) {
  CUDA_RESOURCE_DESC desc{};
  const CUresult result =
      ask(session, task, ImageKind::SURFACE, &desc, session.driver->cuSurfObjectGetResourceDesc);
  if (result == CUDA_SUCCESS) reply.put(describe(session, desc));
  return result;
}
CUresult tex_object_get_texture_desc(Session& session, const Task& task, ReplyWriter& reply) {
  CUDA_TEXTURE_DESC desc{};
  const CUresult result =
      ask(session, task, ImageKind::TEXTURE, &desc, session.driver->cuTexObjectGetTextureDesc);
  if (result == CUDA_SUCCESS) reply.put(desc);
  return result;
}
CUresult tex_object_get_resource_view_desc(Session& session, const Task& task, ReplyWriter& reply) {
  CUDA_RESOURCE_VIEW_DESC desc{};
  const CUresult result =
      ask(session, task, ImageKind::TEXTURE, &desc, session.driver->cuTexObjectGetResourceViewDesc);
  if (result == CUDA_SUCCESS) reply.put(desc);
  return result;
}

}  // namespace kvgpu::worker
