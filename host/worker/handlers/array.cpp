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

wire::ArrayShape shape_of(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  return {d.Width, d.Height, d.Depth, static_cast<uint32_t>(d.Format), d.NumChannels, d.Flags, 0};
}

CUresult tell_shape(const Session& session, CUarray array, wire::ArrayShape* shape) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  const CUresult result = session.driver->cuArray3DGetDescriptor_v2(&d, array);
  *shape = shape_of(d);
  return result;
}

// What an array that is sparse, or mapped later, needs: it never changes.
template <typename Array, typename GetTiles, typename GetMemory>
CUresult tell_needs(const DriverTable& driver, Array array, unsigned flags, GetTiles get_tiles,
                    GetMemory get_memory, wire::ArrayNeeds* needs) {
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  if ((flags & CUDA_ARRAY3D_SPARSE) != 0) {
    if (const CUresult bad = get_tiles(&sparse, array)) return bad;
  }
  CUDA_ARRAY_MEMORY_REQUIREMENTS memory{};
  if ((flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0) {
    CUdevice device;
    if (const CUresult bad = driver.cuCtxGetDevice(&device)) return bad;
    if (const CUresult bad = get_memory(&memory, array, device)) return bad;
  }
  const auto& tile = sparse.tileExtent;
  *needs = {{tile.width, tile.height, tile.depth},
            sparse.miptailFirstLevel,
            sparse.miptailSize,
            sparse.flags,
            0,
            memory.size,
            memory.alignment};
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
  wire::ArrayShape shape;
  const CUresult result = tell_shape(session, part, &shape);
  reply.put(shape);
  return result;
}

}  // namespace

CUresult array_3d_create_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ArrayCreate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  const DriverTable& driver = *session.driver;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = descriptor_of(body);
  CUarray array = nullptr;
  if (const CUresult bad = driver.cuArray3DCreate_v2(&array, &descriptor)) return bad;
  if (!session.handles.add(body.array, array, body.context)) session.violation(task);
  wire::ArrayMade made;
  if (const CUresult bad = tell_shape(session, array, &made.shape)) return bad;
  const CUresult result = tell_needs(driver, array, body.flags, driver.cuArrayGetSparseProperties,
                                     driver.cuArrayGetMemoryRequirements, &made.needs);
  reply.put(made);
  return result;
}

CUresult mipmapped_array_create(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ArrayCreate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  const DriverTable& driver = *session.driver;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = descriptor_of(body);
  CUmipmappedArray array = nullptr;
  if (const CUresult bad = driver.cuMipmappedArrayCreate(&array, &descriptor, body.n_levels)) {
    return bad;
  }
  if (!session.handles.add(body.array, array, body.context)) session.violation(task);
  wire::ArrayMade made{shape_of(descriptor), {}};
  const CUresult result =
      tell_needs(driver, array, body.flags, driver.cuMipmappedArrayGetSparseProperties,
                 driver.cuMipmappedArrayGetMemoryRequirements, &made.needs);
  reply.put(made);
  return result;
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
