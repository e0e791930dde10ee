// SPDX-License-Identifier: Apache-2.0
// CUDA arrays and mipmapped arrays.
#include "copy_box.h"
#include "generated/handlers.gen.h"
#include "kvgpu/image_calls.h"

namespace kvgpu::worker {

namespace {

CUDA_ARRAY3D_DESCRIPTOR descriptor_of(const wire::ArrayCreate& body) {
  return {body.width,      body.height, body.depth, static_cast<CUarray_format>(body.format),
          body.n_channels, body.flags};
}

// Memory that is mapped later would be no allocation of the guest's.
bool is_allowed(const wire::ArrayCreate& body) {
  return (body.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

CUresult tell_shape(const Session& session, CUarray array, ReplyWriter& reply) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  if (const CUresult bad = session.driver->cuArray3DGetDescriptor_v2(&d, array)) return bad;
  reply.put(wire::ArrayShape{d.Width, d.Height, d.Depth, static_cast<uint32_t>(d.Format),
                             d.NumChannels, d.Flags, 0});
  return CUDA_SUCCESS;
}

template <typename Whole, typename Get>
CUresult name_part(Session& session, const Task& task, ReplyWriter& reply, Get get) {
  wire::ArrayPart body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  Whole whole;
  if (!session.handles.get(body.whole, &whole)) return CUDA_ERROR_INVALID_HANDLE;
  CUarray part = nullptr;
  if (const CUresult bad = get(&part, whole, body.index)) return bad;
  if (!session.handles.add(body.part, part, body.whole)) session.violation(task);
  return tell_shape(session, part, reply);
}

}  // namespace

CUresult array_3d_create_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ArrayCreate body;
  if (!task.read(&body)) session.violation(task);
  if (!is_allowed(body)) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult bad = session.enter(body.context)) return bad;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = descriptor_of(body);
  CUarray array = nullptr;
  if (const CUresult bad = session.driver->cuArray3DCreate_v2(&array, &descriptor)) return bad;
  if (!session.handles.add(body.array, array, body.context)) session.violation(task);
  return tell_shape(session, array, reply);
}

CUresult mipmapped_array_create(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ArrayCreate body;
  if (!task.read(&body)) session.violation(task);
  if (!is_allowed(body)) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult bad = session.enter(body.context)) return bad;
  const DriverTable& driver = *session.driver;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = descriptor_of(body);
  CUmipmappedArray array = nullptr;
  if (const CUresult bad = driver.cuMipmappedArrayCreate(&array, &descriptor, body.n_levels)) {
    return bad;
  }
  if (!session.handles.add(body.array, array, body.context)) session.violation(task);
  reply.put(wire::ArrayShape{body.width, body.height, body.depth, body.format, body.n_channels,
                             body.flags, 0});
  return CUDA_SUCCESS;
}

CUresult mipmapped_array_get_level(Session& session, const Task& task, ReplyWriter& reply) {
  return name_part<CUmipmappedArray>(session, task, reply,
                                     session.driver->cuMipmappedArrayGetLevel);
}

CUresult array_get_plane(Session& session, const Task& task, ReplyWriter& reply) {
  return name_part<CUarray>(session, task, reply, session.driver->cuArrayGetPlane);
}

CUresult memcpy_3d_async_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::CopyBox body;
  if (!task.read(&body)) session.violation(task);
  CUDA_MEMCPY3D copy{};
  if (!read_box(session, body.box, &copy)) return CUDA_ERROR_INVALID_VALUE;
  return session.driver->cuMemcpy3DAsync_v2(&copy, task.stream->raw);
}

}  // namespace kvgpu::worker
