// SPDX-License-Identifier: Apache-2.0
// Memory for arrays that are sparse or mapped later. Everything is looked at before the driver sees
// it: where a mapping names no memory, or memory that has been released, driver 580 crashes.
#include <array>

#include "generated/handlers.gen.h"
#include "kvgpu/image_calls.h"

namespace kvgpu::worker {

namespace {

constexpr unsigned LAYERS = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP;

// What of the resource a mapping is about.
struct Target {
  CUDA_ARRAY3D_DESCRIPTOR level{};
  CUDA_ARRAY_SPARSE_PROPERTIES tiles{};  // of a sparse array
};

CUresult find_target(const Session& session, const wire::ArrayMapping& mapping,
                     CUarrayMapInfo* info, Target* target) {
  const DriverTable& driver = *session.driver;
  CUarray level = nullptr;
  if (mapping.resource_type == CU_RESOURCE_TYPE_ARRAY) {
    if (!session.handles.get(mapping.array, &info->resource.array)) return CUDA_ERROR_INVALID_VALUE;
    level = info->resource.array;
  } else if (mapping.resource_type == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
    CUmipmappedArray& whole = info->resource.mipmap;
    if (!session.handles.get(mapping.array, &whole)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult bad = driver.cuMipmappedArrayGetLevel(&level, whole, mapping.level)) {
      return bad;
    }
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  info->resourceType = static_cast<CUresourcetype>(mapping.resource_type);
  if (const CUresult bad = driver.cuArray3DGetDescriptor_v2(&target->level, level)) return bad;
  if ((target->level.Flags & CUDA_ARRAY3D_SPARSE) == 0) return CUDA_SUCCESS;
  return mapping.resource_type == CU_RESOURCE_TYPE_ARRAY
             ? driver.cuArrayGetSparseProperties(&target->tiles, info->resource.array)
             : driver.cuMipmappedArrayGetSparseProperties(&target->tiles, info->resource.mipmap);
}

// Driver 580: the last tile is cut where the array ends.
bool fits(uint64_t offset, uint64_t extent, uint64_t length) {
  return extent != 0 && offset + extent <= length;  // of 32 bits each
}

bool is_within(const wire::ArrayMapping& mapping, const Target& target) {
  const auto& [level, tiles] = target;
  const bool has_layers = (level.Flags & LAYERS) != 0;
  if (mapping.layer >= (has_layers ? level.Depth : 1)) return false;
  if (mapping.subresource_type == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    return mapping.tail_offset <= tiles.miptailSize &&
           mapping.tail_bytes <= tiles.miptailSize - mapping.tail_offset;
  }
  const size_t depth = has_layers || level.Depth == 0 ? 1 : level.Depth;
  return fits(mapping.offset[0], mapping.extent[0], level.Width) &&
         fits(mapping.offset[1], mapping.extent[1], level.Height) &&
         fits(mapping.offset[2], mapping.extent[2], depth);
}

CUresult put_part(const wire::ArrayMapping& mapping, const Target& target, CUarrayMapInfo* info) {
  if ((target.level.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0) return CUDA_SUCCESS;  // all of it
  const bool is_sparse = (target.level.Flags & CUDA_ARRAY3D_SPARSE) != 0;
  if (!is_sparse || !is_within(mapping, target)) return CUDA_ERROR_INVALID_VALUE;
  info->subresourceType = static_cast<CUarraySparseSubresourceType>(mapping.subresource_type);
  if (mapping.subresource_type == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    info->subresource.miptail = {mapping.layer, mapping.tail_offset, mapping.tail_bytes};
    return CUDA_SUCCESS;
  }
  if (mapping.subresource_type != CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  info->subresource.sparseLevel = {mapping.level,     mapping.layer,     mapping.offset[0],
                                   mapping.offset[1], mapping.offset[2], mapping.extent[0],
                                   mapping.extent[1], mapping.extent[2]};
  return CUDA_SUCCESS;
}

CUresult put_memory(const Session& session, const wire::ArrayMapping& mapping,
                    CUarrayMapInfo* info) {
  info->memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info->memOperationType = static_cast<CUmemOperationType>(mapping.operation);
  info->offset = mapping.memory_offset;
  if (mapping.operation == CU_MEM_OPERATION_TYPE_UNMAP) return CUDA_SUCCESS;  // whatever it names
  const auto physical = session.virtual_memory.find(mapping.memory);
  if (mapping.operation != CU_MEM_OPERATION_TYPE_MAP || !physical || physical->is_host()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  info->memHandle.memHandle = physical->raw;
  return CUDA_SUCCESS;
}

CUresult to_driver(const Session& session, const wire::ArrayMapping& mapping, int device,
                   CUarrayMapInfo* info) {
  *info = {};
  Target target;
  if (const CUresult bad = find_target(session, mapping, info, &target)) return bad;
  if (const CUresult bad = put_part(mapping, target, info)) return bad;
  if (mapping.device_mask != 1u << static_cast<unsigned>(device)) return CUDA_ERROR_INVALID_VALUE;
  info->deviceBitMask = mapping.device_mask;
  return put_memory(session, mapping, info);
}

}  // namespace

CUresult mem_map_array_async(Session& session, const Task& task, ReplyWriter&) {
  wire::MapArrays body;
  if (!task.read(&body)) session.violation(task);
  const auto list = task.after<wire::MapArrays>();
  if (body.n == 0 || body.n > wire::MAX_ARRAY_MAPPINGS ||
      list.size() < body.n * sizeof(wire::ArrayMapping)) {
    session.violation(task);
  }
  std::array<CUarrayMapInfo, wire::MAX_ARRAY_MAPPINGS> infos;
  for (size_t i = 0; i < body.n; ++i) {
    wire::ArrayMapping mapping;
    std::memcpy(&mapping, list.data() + i * sizeof mapping, sizeof mapping);
    const CUresult bad = to_driver(session, mapping, task.stream->context->device, &infos[i]);
    if (bad != CUDA_SUCCESS) return bad;
  }
  return session.driver->cuMemMapArrayAsync(infos.data(), static_cast<unsigned>(body.n),
                                            task.stream->raw);
}

}  // namespace kvgpu::worker
