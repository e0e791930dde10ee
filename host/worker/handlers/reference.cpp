// SPDX-License-Identifier: Apache-2.0
// Texture and surface references. Addresses are the GPU's to check, as those of objects
// (image.cpp).
#include <string>

#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/image_calls.h"
#include "record_name.h"

namespace kvgpu::worker {

namespace {

template <typename Reference, typename Get>
CUresult name_reference(Session& session, const Task& task, Get driver_call) {
  wire::GetReference body;
  std::string name;
  if (!task.read(&body) || !read_name(task, body, &name)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUmodule module;
  if (!session.handles.get(body.module, &module)) return CUDA_ERROR_INVALID_HANDLE;
  session.has_references = true;
  Reference reference = nullptr;
  if (const CUresult bad = driver_call(&reference, module, name.c_str())) return bad;
  if (!session.handles.add(body.reference, reference, body.module)) session.violation(task);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult module_get_tex_ref(Session& session, const Task& task, ReplyWriter&) {
  return name_reference<CUtexref>(session, task, session.driver->cuModuleGetTexRef);
}
CUresult module_get_surf_ref(Session& session, const Task& task, ReplyWriter&) {
  return name_reference<CUsurfref>(session, task, session.driver->cuModuleGetSurfRef);
}

CUresult tex_ref_create(Session& session, const Task& task, ReplyWriter&) {
  wire::ReferenceRef body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  session.has_references = true;
  CUtexref reference = nullptr;
  if (const CUresult bad = session.driver->cuTexRefCreate(&reference)) return bad;
  if (!session.handles.add(body.reference, reference, body.context)) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult tex_ref_set_address_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ReferenceAddress body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUtexref reference;
  if (!session.handles.get(body.reference, &reference)) return CUDA_ERROR_INVALID_HANDLE;
  size_t offset = 0;
  const CUresult result = session.driver->cuTexRefSetAddress_v2(
      body.wants_offset != 0 ? &offset : nullptr, reference, body.address, body.bytes);
  reply.put(wire::Value64{offset});
  return result;
}

CUresult tex_ref_set_address_2d_v3(Session& session, const Task& task, ReplyWriter&) {
  wire::ReferenceAddress2D body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUtexref reference;
  if (!session.handles.get(body.reference, &reference)) return CUDA_ERROR_INVALID_HANDLE;
  const CUDA_ARRAY_DESCRIPTOR descriptor{body.width, body.height,
                                         static_cast<CUarray_format>(body.format), body.n_channels};
  return session.driver->cuTexRefSetAddress2D_v3(reference, &descriptor, body.address,
                                                 body.pitch_bytes);
}

CUresult tex_ref_set_border_color(Session& session, const Task& task, ReplyWriter&) {
  wire::ReferenceColor body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUtexref reference;
  if (!session.handles.get(body.reference, &reference)) return CUDA_ERROR_INVALID_HANDLE;
  return session.driver->cuTexRefSetBorderColor(reference, body.color.channels);
}

CUresult tex_ref_get_border_color(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ReferenceRef body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUtexref reference;
  if (!session.handles.get(body.reference, &reference)) return CUDA_ERROR_INVALID_HANDLE;
  wire::BorderColor color{};
  const CUresult result = session.driver->cuTexRefGetBorderColor(color.channels, reference);
  reply.put(color);
  return result;
}

}  // namespace kvgpu::worker
