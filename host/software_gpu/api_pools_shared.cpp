// SPDX-License-Identifier: Apache-2.0
// Memory pools in other processes: the pool's file by descriptor, its allocations by their place in
// the file.
#include <cstring>

#include "api.h"

using namespace software_gpu;

namespace {

constexpr uint64_t POINTER_MAGIC = 0x727450757067766b;  // "kvgpuPtr"

/// What is in the bytes of CUmemPoolPtrExportData.
struct FilePlace {
  uint64_t magic, file_id, offset_bytes, size_bytes;
};
static_assert(sizeof(FilePlace) <= sizeof(CUmemPoolPtrExportData));

}  // namespace

SOFTWARE_GPU_API cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool handle,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find(handle, &pool));
  if (!shareable || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (!pool->file || pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
  return export_descriptor(*pool->file, shareable);
}

SOFTWARE_GPU_API cuMemPoolImportFromShareableHandle(CUmemoryPool* handle, void* shareable,
                                                    CUmemAllocationHandleType type,
                                                    unsigned long long flags) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  auto file = SharedFile::open(descriptor_of(shareable), SharedFile::Use::POOL);
  if (!file) return CUDA_ERROR_UNKNOWN;
  Device* const device = Driver::instance().device(file->ordinal());
  if (!device) return CUDA_ERROR_NOT_SUPPORTED;
  auto pool = std::make_shared<MemPool>(*device, 0);
  pool->file = std::move(file);
  pool->is_imported = true;
  *handle = reinterpret_cast<CUmemoryPool>(pool.get());
  Driver::instance().pools.add(std::move(pool));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr pointer) {
  RETURN_IF_FAILED(enter_without_context());
  const auto allocation = Driver::instance().find(pointer);
  if (!data || !allocation || allocation->base != pointer ||
      allocation->kind != MemoryKind::DEVICE || !allocation->pool || !allocation->pool->file)
    return CUDA_ERROR_INVALID_VALUE;
  const Backing& backing = *allocation->backing;
  const FilePlace place{POINTER_MAGIC, backing.file()->id(), backing.offset_bytes(),
                        allocation->size_bytes};
  *data = {};
  memcpy(data->reserved, &place, sizeof place);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMemPoolImportPointer(CUdeviceptr* pointer, CUmemoryPool handle,
                                        CUmemPoolPtrExportData* data) {
  std::shared_ptr<MemPool> pool;
  RETURN_IF_FAILED(find(handle, &pool));
  if (!pointer || !data || !pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
  FilePlace place;
  memcpy(&place, data->reserved, sizeof place);
  if (place.magic != POINTER_MAGIC || place.file_id != pool->file->id())
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  RETURN_IF_FAILED(pool->device.memory.import_from(pool->file, place.offset_bytes, place.size_bytes,
                                                   &address, pool));
  *pointer = address;
  return CUDA_SUCCESS;
}
