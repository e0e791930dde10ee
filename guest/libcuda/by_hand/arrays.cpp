// SPDX-License-Identifier: Apache-2.0
// CUDA arrays and mipmapped arrays. Their shapes come with them, so the descriptors are answered
// here.
#include <algorithm>

#include "call.h"
#include "generated/api.gen.h"
#include "kvgpu/plain_calls.gen.h"
#include "memory_limit.h"

namespace kvgpu::guest {

namespace {

constexpr unsigned MAPPED_LATER = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

// What its first level takes at least. Memory that is mapped later counts where it is made.
uint64_t least_bytes(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  if ((d.Flags & MAPPED_LATER) != 0) return 0;
  uint64_t bytes = std::max(wire::channel_bytes(d.Format), 1u) * uint64_t{d.NumChannels};
  for (const uint64_t n : {d.Width, std::max<size_t>(d.Height, 1), std::max<size_t>(d.Depth, 1)}) {
    if (__builtin_mul_overflow(bytes, n, &bytes)) return UINT64_MAX;
  }
  return bytes;
}

template <typename Handle>
CUresult create(Handle* array, wire::Op op, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                unsigned n_levels) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (array == nullptr || descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR& d = *descriptor;
  const uint64_t bytes = least_bytes(d);
  const Allowance allowance(call, bytes);
  if (allowance.status() != CUDA_SUCCESS) return allowance.status();
  Array* const object = tables().arrays.create();
  if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  object->context = &call.context_object();
  object->is_mipmapped = std::is_same_v<Handle, CUmipmappedArray>;
  const wire::ArrayCreate body{call.context(), object->handle, d.Width,
                               d.Height,       d.Depth,        static_cast<uint32_t>(d.Format),
                               d.NumChannels,  d.Flags,        n_levels};
  wire::ArrayMade made;
  if (const CUresult bad = call.sync(op, body, &made)) {
    forget(object->handle);
    return bad;
  }
  object->shape = made.shape;
  object->needs = made.needs;
  object->bytes = bytes;
  *array = from_wire<Handle>(object->handle);
  return CUDA_SUCCESS;
}

template <typename Body, typename Handle>
CUresult destroy(wire::Op op, Handle handle) {
  const Array* const array = find(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::FORBIDDEN, array->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (array->is_part) return CUDA_SUCCESS;  // driver 580: it goes with the whole, and not before
  const CUresult result = call.sync(op, Body{call.context(), to_wire(handle)});
  if (result == CUDA_SUCCESS) forget(to_wire(handle));
  return result;
}

CUresult get_part(CUarray* part, wire::Op op, Array* whole, unsigned index) {
  if (whole == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, whole->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (part == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(whole->mutex);
  if (const auto known = whole->parts.find(index); known != whole->parts.end()) {
    *part = from_wire<CUarray>(known->second);
    return CUDA_SUCCESS;
  }
  Array* const object = tables().arrays.create();
  if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  object->context = whole->context;
  object->is_part = true;
  const wire::ArrayPart body{call.context(), whole->handle, object->handle, index, 0};
  if (const CUresult bad = call.sync(op, body, &object->shape)) {
    forget(object->handle);
    return bad;
  }
  whole->parts.emplace(index, object->handle);
  *part = from_wire<CUarray>(object->handle);
  return CUDA_SUCCESS;
}

// `kind`: the flag of the arrays that have such an answer. A level has none of its own. Driver 580
// asks for no context, looks at no device, and answers nothing but INVALID_VALUE, whatever is
// wrong: before cuInit and after a fault, too.
template <typename Handle>
const wire::ArrayNeeds* find_needs(Handle handle, unsigned kind) {
  const bool has_answers = Session::is_open() && !Session::in_callback() &&
                           Session::get().lasting_error() == CUDA_SUCCESS;
  const Array* const array = has_answers ? find(handle) : nullptr;
  const bool is_kind = array != nullptr && !array->is_part && (array->shape.flags & kind) != 0;
  return is_kind ? &array->needs : nullptr;
}

template <typename Handle>
CUresult get_sparse_properties(CUDA_ARRAY_SPARSE_PROPERTIES* properties, Handle handle) {
  const wire::ArrayNeeds* const needs = find_needs(handle, CUDA_ARRAY3D_SPARSE);
  if (needs == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->tileExtent = {needs->tile[0], needs->tile[1], needs->tile[2]};
  properties->miptailFirstLevel = needs->miptail_first_level;
  properties->miptailSize = needs->miptail_bytes;
  properties->flags = needs->flags;
  return CUDA_SUCCESS;
}

template <typename Handle>
CUresult get_memory_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements, Handle handle) {
  const wire::ArrayNeeds* const needs = find_needs(handle, CUDA_ARRAY3D_DEFERRED_MAPPING);
  if (needs == nullptr || requirements == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *requirements = {};
  requirements->size = needs->bytes;
  requirements->alignment = needs->alignment_bytes;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult array_create_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  if (pAllocateArray == nullptr) return array_3d_create_v2(pHandle, nullptr);
  const CUDA_ARRAY_DESCRIPTOR& d = *pAllocateArray;
  const CUDA_ARRAY3D_DESCRIPTOR whole{d.Width, d.Height, 0, d.Format, d.NumChannels, 0};
  return array_3d_create_v2(pHandle, &whole);
}

CUresult array_3d_create_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  return create(pHandle, wire::Op::cuArray3DCreate_v2, pAllocateArray, 1);
}

CUresult mipmapped_array_create(CUmipmappedArray* pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  return create(pHandle, wire::Op::cuMipmappedArrayCreate, pMipmappedArrayDesc, numMipmapLevels);
}

CUresult array_destroy(CUarray hArray) {
  return destroy<wire::cuArrayDestroy_in>(wire::Op::cuArrayDestroy, hArray);
}
CUresult mipmapped_array_destroy(CUmipmappedArray hMipmappedArray) {
  return destroy<wire::cuMipmappedArrayDestroy_in>(wire::Op::cuMipmappedArrayDestroy,
                                                   hMipmappedArray);
}

CUresult mipmapped_array_get_level(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray,
                                   unsigned int level) {
  return get_part(pLevelArray, wire::Op::cuMipmappedArrayGetLevel, find(hMipmappedArray), level);
}
CUresult array_get_plane(CUarray* pPlaneArray, CUarray hArray, unsigned int planeIdx) {
  return get_part(pPlaneArray, wire::Op::cuArrayGetPlane, find(hArray), planeIdx);
}

CUresult array_3d_get_descriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  const Array* const array = find(hArray);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, array->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const wire::ArrayShape& shape = array->shape;
  *pArrayDescriptor = {shape.width,      shape.height,
                       shape.depth,      static_cast<CUarray_format>(shape.format),
                       shape.n_channels, shape.flags};
  return CUDA_SUCCESS;
}

CUresult array_get_descriptor_v2(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR d;
  if (const CUresult bad = array_3d_get_descriptor_v2(&d, hArray)) return bad;
  *pArrayDescriptor = {d.Width, d.Height, d.Format, d.NumChannels};
  return CUDA_SUCCESS;
}

CUresult array_get_sparse_properties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties,
                                     CUarray array) {
  return get_sparse_properties(sparseProperties, array);
}
CUresult array_get_memory_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                       CUarray array, CUdevice) {
  return get_memory_requirements(memoryRequirements, array);
}
CUresult mipmapped_array_get_sparse_properties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties,
                                               CUmipmappedArray mipmap) {
  return get_sparse_properties(sparseProperties, mipmap);
}
CUresult mipmapped_array_get_memory_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                                 CUmipmappedArray mipmap, CUdevice) {
  return get_memory_requirements(memoryRequirements, mipmap);
}

}  // namespace kvgpu::guest
