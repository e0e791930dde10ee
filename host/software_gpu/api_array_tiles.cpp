// SPDX-License-Identifier: Apache-2.0
// Sparse arrays and those that are mapped later: what they need, and mapping them.
#include "api.h"
#include "array.h"
#include "context_captures.h"

using namespace software_gpu;

namespace {

enum class Later { SPARSE, DEFERRED };

/// The tiles of a whole array of that kind; a level of a mipmapped one has none of its own.
template <class T, class Handle>
CUresult find_tiles(const Table<T>& table, Handle handle, std::shared_ptr<Tiles>* tiles) {
  const auto array = table.find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if constexpr (std::is_same_v<T, Array>)
    if (array->is_level) return CUDA_ERROR_INVALID_VALUE;
  *tiles = array->tiles;
  return *tiles ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// Null where there is no answer: driver 580 calls all that INVALID_VALUE, before cuInit and after
/// a fault, too. It asks for no context, and looks at no device.
template <class T, class Handle>
std::shared_ptr<Tiles> ask(const Table<T>& table, Handle handle, Later kind) {
  std::shared_ptr<Tiles> tiles;
  if (enter_without_error() != CUDA_SUCCESS || find_tiles(table, handle, &tiles) != CUDA_SUCCESS)
    return nullptr;
  return tiles->is_sparse() == (kind == Later::SPARSE) ? tiles : nullptr;
}

template <class T, class Handle>
CUresult sparse_properties(CUDA_ARRAY_SPARSE_PROPERTIES* p, const Table<T>& table, Handle handle) {
  const std::shared_ptr<Tiles> tiles = ask(table, handle, Later::SPARSE);
  if (!tiles || !p) return CUDA_ERROR_INVALID_VALUE;
  const Layout& layout = tiles->layout();
  *p = {};
  p->tileExtent = {layout.tile[0], layout.tile[1], layout.tile[2]};
  // Driver 580: that of an array is 0, whether or not there is a tail.
  p->miptailFirstLevel = std::is_same_v<T, Array> ? 0 : layout.first_in_tail;
  p->miptailSize = layout.tail_bytes;
  p->flags = layout.is_one_tail ? CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL : 0;
  return CUDA_SUCCESS;
}

template <class T, class Handle>
CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* p, const Table<T>& table, Handle handle) {
  const std::shared_ptr<Tiles> tiles = ask(table, handle, Later::DEFERRED);
  if (!tiles || !p) return CUDA_ERROR_INVALID_VALUE;
  *p = {};
  p->size = tiles->layout().size_bytes;
  p->alignment = TILE_BYTES;
  return CUDA_SUCCESS;
}

/// Tiles behind each other.
struct Run {
  uint64_t first_byte, n_bytes;
};

/// One operation of a list, checked.
struct TileMapping {
  std::shared_ptr<Tiles> tiles;
  std::vector<Run> runs;
  std::shared_ptr<const Physical> physical;  // null: to unmap
  uint64_t offset_bytes = 0;
};

/// From tile to tile; the last one ends where the level does.
bool is_cut(uint64_t first, uint64_t n, uint64_t tile, uint64_t length) {
  return n != 0 && first % tile == 0 && first < length && n <= length - first &&
         (n % tile == 0 || first + n == length);
}

CUresult runs_of_level(const CUarrayMapInfo& info, const Layout& layout, std::vector<Run>* runs) {
  const auto& at = info.subresource.sparseLevel;
  if (at.level >= layout.first_in_tail) return CUDA_ERROR_INVALID_VALUE;
  const auto& [offset_bytes, tiling, d] = layout.levels[at.level];
  const bool is_layered = d.Flags & CUDA_ARRAY3D_LAYERED;
  const unsigned n_layers = is_layered ? static_cast<unsigned>(d.Depth) : 1;
  const size_t depth = is_layered || d.Depth == 0 ? 1 : d.Depth;
  if (at.layer >= n_layers || !is_cut(at.offsetX, at.extentWidth, layout.tile[0], d.Width) ||
      !is_cut(at.offsetY, at.extentHeight, layout.tile[1], d.Height) ||
      !is_cut(at.offsetZ, at.extentDepth, layout.tile[2], depth))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t element_bytes = tiling.width_bytes / layout.tile[0];
  const uint64_t n_across = (at.extentWidth + layout.tile[0] - 1) / layout.tile[0];
  for (uint64_t z = 0; z < at.extentDepth; z += layout.tile[2])
    for (uint64_t y = 0; y < at.extentHeight; y += layout.tile[1]) {
      const uint64_t first =
          tiling.index(at.offsetX * element_bytes, at.offsetY + y, at.layer + at.offsetZ + z);
      runs->push_back({offset_bytes + first * TILE_BYTES, n_across * TILE_BYTES});
    }
  return CUDA_SUCCESS;
}

CUresult runs_of_tail(const CUarrayMapInfo& info, const Layout& layout, std::vector<Run>* runs) {
  const auto& at = info.subresource.miptail;
  const CUDA_ARRAY3D_DESCRIPTOR& d = layout.levels.front().descriptor;
  const bool is_for_layers = d.Flags & CUDA_ARRAY3D_LAYERED && !layout.is_one_tail;
  if (at.layer >= (is_for_layers ? d.Depth : 1) ||
      !is_cut(at.offset, at.size, TILE_BYTES, layout.tail_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  runs->push_back({layout.tail_offset_bytes + at.layer * layout.tail_bytes + at.offset, at.size});
  return CUDA_SUCCESS;
}

CUresult find_runs(const CUarrayMapInfo& info, const Tiles& tiles, std::vector<Run>* runs) {
  const Layout& layout = tiles.layout();
  if (!tiles.is_sparse()) {  // CUDA 13.0 cuda.h: of those the subresource is ignored
    runs->push_back({0, layout.size_bytes});
    return CUDA_SUCCESS;
  }
  switch (info.subresourceType) {
    case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL:
      return runs_of_level(info, layout, runs);
    case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL:
      return runs_of_tail(info, layout, runs);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult find_pool(const CUarrayMapInfo& info, const Device& device, TileMapping* mapping) {
  mapping->physical = Driver::instance().virtual_memory.find(info.memHandle.memHandle);
  if (!mapping->physical) return CUDA_ERROR_INVALID_VALUE;
  const CUmemAllocationProp& p = mapping->physical->properties;
  uint64_t n_bytes = 0;
  for (const Run& run : mapping->runs) n_bytes += run.n_bytes;
  const uint64_t there_bytes = mapping->physical->backing->size_bytes();
  const bool is_pool = p.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                       p.location.id == device.ordinal &&
                       p.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL;
  mapping->offset_bytes = info.offset;
  return is_pool && info.offset % TILE_BYTES == 0 && info.offset <= there_bytes &&
                 n_bytes <= there_bytes - info.offset
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

/// What can be said without the device.
CUresult check(const CUarrayMapInfo& info, TileMapping* mapping) {
  Driver& driver = Driver::instance();
  if (info.flags != 0 || info.reserved[0] != 0 || info.reserved[1] != 0 ||
      info.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult found = CUDA_ERROR_INVALID_VALUE;
  if (info.resourceType == CU_RESOURCE_TYPE_ARRAY)
    found = find_tiles(driver.arrays, info.resource.array, &mapping->tiles);
  else if (info.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
    found = find_tiles(driver.mipmapped_arrays, info.resource.mipmap, &mapping->tiles);
  if (found != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_runs(info, *mapping->tiles, &mapping->runs));
  return info.memOperationType == CU_MEM_OPERATION_TYPE_MAP ||
                 info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult apply(const TileMapping& mapping) {
  uint64_t offset_bytes = mapping.offset_bytes;
  for (const auto& [first_byte, n_bytes] : mapping.runs) {
    RETURN_IF_FAILED(mapping.physical
                         ? mapping.tiles->map(first_byte, n_bytes, mapping.physical, offset_bytes)
                         : mapping.tiles->unmap(first_byte, n_bytes));
    offset_bytes += n_bytes;
  }
  return CUDA_SUCCESS;
}

}  // namespace

SOFTWARE_GPU_API cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* p, CUarray handle) {
  return sparse_properties(p, Driver::instance().arrays, handle);
}
SOFTWARE_GPU_API cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* p,
                                                     CUmipmappedArray handle) {
  return sparse_properties(p, Driver::instance().mipmapped_arrays, handle);
}
SOFTWARE_GPU_API cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* p, CUarray handle,
                                              CUdevice) {
  return requirements(p, Driver::instance().arrays, handle);
}
SOFTWARE_GPU_API cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* p,
                                                       CUmipmappedArray handle, CUdevice) {
  return requirements(p, Driver::instance().mipmapped_arrays, handle);
}

// As with driver 580 what is wrong with the list counts before the context and the stream do.
SOFTWARE_GPU_API cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned n, CUstream handle) {
  if (!list || n == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<TileMapping> mappings;
  for (unsigned i = 0; i < n; ++i) RETURN_IF_FAILED(check(list[i], &mappings.emplace_back()));
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_to_enqueue(*context, handle, &stream));
  for (unsigned i = 0; i < n; ++i) {
    if (list[i].deviceBitMask != 1u << context->device.ordinal) return CUDA_ERROR_INVALID_VALUE;
    if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
      RETURN_IF_FAILED(find_pool(list[i], context->device, &mappings[i]));
  }
  RETURN_IF_FAILED(refuse_question(*context, *stream));
  Operation operation;
  operation.run = [mappings = std::move(mappings)](Context&) {
    for (const TileMapping& mapping : mappings) RETURN_IF_FAILED(apply(mapping));
    return CUDA_SUCCESS;
  };
  return context->submit(*stream, std::move(operation));
}
