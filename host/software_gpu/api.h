// SPDX-License-Identifier: Apache-2.0
// For the files that define CUDA's entry points.
#pragma once

#include "context.h"

#define SOFTWARE_GPU_API extern "C" __attribute__((visibility("default"))) CUresult

/// Leave the entry point with any code that is not success.
#define RETURN_IF_FAILED(expression)                                                    \
  do {                                                                                  \
    if (const CUresult result_ = (expression); result_ != CUDA_SUCCESS) return result_; \
  } while (false)

namespace software_gpu {

/// The device of a number, which needs no context.
[[nodiscard]] inline CUresult find(CUdevice ordinal, Device** device) {
  RETURN_IF_FAILED(enter_without_context());
  *device = Driver::instance().device(ordinal);
  return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
[[nodiscard]] inline CUresult find(CUmemoryPool handle, std::shared_ptr<MemPool>* pool) {
  RETURN_IF_FAILED(enter_without_context());
  *pool = Driver::instance().pools.find(handle);
  return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline GraphNode* node_of(CUgraphNode handle) { return reinterpret_cast<GraphNode*>(handle); }

/// The stream of a handle, or null after a bad one (CUDA_ERROR_INVALID_HANDLE).
[[nodiscard]] CUresult find_stream(Context& context, CUstream handle,
                                   std::shared_ptr<Stream>* stream);
/// The same for a question about it: as on driver 580 none while its capture is broken.
[[nodiscard]] CUresult find_unbroken(Context& context, CUstream handle,
                                     std::shared_ptr<Stream>* stream);
/// For calls that may not be made on a capturing stream, and that end its capture.
CUresult refuse_question(Context& context, Stream& stream);

/// Submit and wait; delivers printf output. For the calls that block.
[[nodiscard]] CUresult submit_and_wait(Context& context, Stream& stream, Operation operation);

/// After a wait: print, then the error that the work may have left.
[[nodiscard]] CUresult finish_wait(Context& context);
/// Likewise after that of a synchronisation: pools keep no more than their thresholds.
[[nodiscard]] CUresult finish_synchronization(Context& context);

/// Sets the time of an event's record; `recording`: of an interprocess event, held until it has
/// run.
[[nodiscard]] Operation stamp(const std::shared_ptr<Event::Record>& record,
                              std::shared_ptr<void> recording = nullptr);

/// Takes back one retain of the device's primary context; the last one tears it down.
[[nodiscard]] CUresult release_primary(Device& device);

/// The copy that CUDA_MEMCPY3D describes, on a stream; waits where host memory is pageable.
[[nodiscard]] CUresult copy_rows(const CUDA_MEMCPY3D& params, CUstream stream);

/// True of what cuMemAlloc made: nothing else has legacy handles for other processes.
inline bool is_ipc_capable(const Allocation& allocation) {
  return allocation.kind == MemoryKind::DEVICE && !allocation.pool;
}

/// True of what cuMemPoolImportPointer made, which is freed as if it were this process's.
inline bool is_pool_import(const Allocation& allocation) {
  return allocation.kind == MemoryKind::IMPORTED && allocation.pool;
}

// Shareable handles of the type POSIX_FILE_DESCRIPTOR.
[[nodiscard]] CUresult export_descriptor(const SharedFile& file, void* shareable);
/// CUDA passes the number itself in place of a pointer.
inline int descriptor_of(const void* shareable) {
  return static_cast<int>(reinterpret_cast<intptr_t>(shareable));
}

}  // namespace software_gpu
