// SPDX-License-Identifier: Apache-2.0
// Memory for arrays that are sparse or mapped later. What the driver says of a mapping counts; here
// it gets the form that crosses.
#include <algorithm>
#include <array>
#include <vector>

#include "enqueue.h"
#include "generated/api.gen.h"
#include "kvgpu/image_calls.h"

namespace kvgpu::guest {

namespace {

Array* array_of(const CUarrayMapInfo& info) {
  if (info.resourceType == CU_RESOURCE_TYPE_ARRAY) return find(info.resource.array);
  if (info.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) return find(info.resource.mipmap);
  return nullptr;
}

CUresult describe(const CUarrayMapInfo& info, wire::ArrayMapping* mapping) {
  const Array* const array = array_of(info);
  if (array == nullptr || info.flags != 0 || info.reserved[0] != 0 || info.reserved[1] != 0 ||
      info.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *mapping = {};
  mapping->array = array->handle;
  mapping->resource_type = static_cast<uint32_t>(info.resourceType);
  mapping->memory = info.memHandle.memHandle;
  mapping->memory_offset = info.offset;
  mapping->operation = static_cast<uint32_t>(info.memOperationType);
  mapping->device_mask = info.deviceBitMask;
  // CUDA 13.0 cuda.h: the subresource of what is mapped as a whole is ignored.
  if ((array->shape.flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0) return CUDA_SUCCESS;
  mapping->subresource_type = static_cast<uint32_t>(info.subresourceType);
  if (info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    const auto& tail = info.subresource.miptail;
    mapping->layer = tail.layer;
    mapping->tail_offset = tail.offset;
    mapping->tail_bytes = tail.size;
    return CUDA_SUCCESS;
  }
  const auto& at = info.subresource.sparseLevel;
  mapping->level = at.level;
  mapping->layer = at.layer;
  std::ranges::copy(std::array{at.offsetX, at.offsetY, at.offsetZ}, mapping->offset);
  std::ranges::copy(std::array{at.extentWidth, at.extentHeight, at.extentDepth}, mapping->extent);
  return CUDA_SUCCESS;
}

}  // namespace

// As with driver 580 what is wrong with the list counts before the context and the stream do.
CUresult mem_map_array_async(CUarrayMapInfo* mapInfoList, unsigned int count, CUstream hStream) {
  if (mapInfoList == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<wire::ArrayMapping> list;
  for (unsigned i = 0; i < count; ++i) {
    if (const CUresult bad = describe(mapInfoList[i], &list.emplace_back())) return bad;
  }
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  for (size_t first = 0; first < list.size(); first += wire::MAX_ARRAY_MAPPINGS) {
    const size_t n = std::min<size_t>(list.size() - first, wire::MAX_ARRAY_MAPPINGS);
    const Part part{&list[first], static_cast<uint32_t>(n * sizeof list[0])};
    const CUresult bad =
        enqueue.submit_and_ask(wire::Op::cuMemMapArrayAsync, wire::MapArrays{0, 0, n}, part);
    if (bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
