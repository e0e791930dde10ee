// SPDX-License-Identifier: Apache-2.0
// Seldom asked of devices, older forms of calls, and what the software GPU refuses.
#include <algorithm>

#include "api.h"

using namespace software_gpu;

namespace {

CUresult check_device(CUdevice ordinal) {
  RETURN_IF_FAILED(enter_without_context());
  return Driver::instance().device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/// The atomic instructions of ops_atomic.cpp: they are the host's own.
unsigned atomic_capability(CUatomicOperation operation) {
  constexpr unsigned BOTH_SIZES = CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;
  constexpr unsigned INTEGER =
      CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION;
  switch (operation) {
    case CU_ATOMIC_OPERATION_INTEGER_ADD:
    case CU_ATOMIC_OPERATION_INTEGER_MIN:
    case CU_ATOMIC_OPERATION_INTEGER_MAX:
    case CU_ATOMIC_OPERATION_AND:
    case CU_ATOMIC_OPERATION_OR:
    case CU_ATOMIC_OPERATION_XOR:
      return INTEGER | BOTH_SIZES;
    case CU_ATOMIC_OPERATION_INTEGER_INCREMENT:
    case CU_ATOMIC_OPERATION_INTEGER_DECREMENT:
      return CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION |
             CU_ATOMIC_CAPABILITY_SCALAR_32;
    case CU_ATOMIC_OPERATION_EXCHANGE:
    case CU_ATOMIC_OPERATION_CAS:
      return CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED | BOTH_SIZES;
    case CU_ATOMIC_OPERATION_FLOAT_ADD:
      return CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | BOTH_SIZES;
    default:
      return 0;
  }
}

}  // namespace

SOFTWARE_GPU_API cuDeviceGetProperties(CUdevprop* p, CUdevice device) {
  RETURN_IF_FAILED(check_device(device));
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  const auto get = [device](CUdevice_attribute attribute) {
    int value = 0;
    static_cast<void>(cuDeviceGetAttribute(&value, attribute, device));
    return value;
  };
  *p = {get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        {get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X), get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
         get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)},
        {get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X), get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
         get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)},
        get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        get(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        get(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT)};
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetHostAtomicCapabilities(unsigned* capabilities,
                                                   const CUatomicOperation* operations, unsigned n,
                                                   CUdevice device) {
  RETURN_IF_FAILED(check_device(device));
  if (!capabilities || !operations || n == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto is_valid = [](CUatomicOperation o) { return o >= 0 && o < CU_ATOMIC_OPERATION_MAX; };
  if (!std::all_of(operations, operations + n, is_valid)) return CUDA_ERROR_INVALID_VALUE;
  std::transform(operations, operations + n, capabilities, atomic_capability);
  return CUDA_SUCCESS;
}

// As on any device that shares no functions with the host, whatever the name.
SOFTWARE_GPU_API cuLibraryGetUnifiedFunction(void**, CUlibrary library, const char*) {
  RETURN_IF_FAILED(enter_without_context());
  return Driver::instance().modules.find(library) ? CUDA_ERROR_INVALID_VALUE
                                                  : CUDA_ERROR_INVALID_HANDLE;
}

// There is no profiler that could be switched on or off.
SOFTWARE_GPU_API cuProfilerStart() {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  return check_capture_safe(*context);
}
SOFTWARE_GPU_API cuProfilerStop() { return cuProfilerStart(); }
SOFTWARE_GPU_API cuProfilerInitialize(const char*, const char*, int) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

#undef cuEventDestroy
SOFTWARE_GPU_API cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

// Of CUDA before 3.2, whose sizes and addresses have 32 bits.
#undef cuDeviceTotalMem
SOFTWARE_GPU_API cuDeviceTotalMem(unsigned* n_bytes, CUdevice device) {
  size_t total = 0;
  if (!n_bytes) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(cuDeviceTotalMem_v2(&total, device));
  *n_bytes = static_cast<unsigned>(std::min<size_t>(total, UINT32_MAX));
  return CUDA_SUCCESS;
}

// Nothing but the processor writes to this memory.
SOFTWARE_GPU_API cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                            CUflushGPUDirectRDMAWritesScope scope) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const bool is_known = target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
                        (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ||
                         scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
  return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// No process has a budget of memory, so no callback is ever due.
struct CUasyncCallbackEntry_st {
  CUdevice device;
};
SOFTWARE_GPU_API cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback function, void*,
                                                   CUasyncCallbackHandle* callback) {
  RETURN_IF_FAILED(check_device(device));
  if (!function || !callback) return CUDA_ERROR_INVALID_VALUE;
  *callback = new CUasyncCallbackEntry_st{device};
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuDeviceUnregisterAsyncNotification(CUdevice device,
                                                     CUasyncCallbackHandle callback) {
  RETURN_IF_FAILED(check_device(device));
  if (!callback || callback->device != device) return CUDA_ERROR_INVALID_VALUE;
  delete callback;
  return CUDA_SUCCESS;
}

// Attributes say of what follows that the device does not do it.
SOFTWARE_GPU_API cuDeviceGetLuid(char*, unsigned*, CUdevice device) {
  RETURN_IF_FAILED(check_device(device));
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuDeviceGetNvSciSyncAttributes(void*, CUdevice device, int) {
  RETURN_IF_FAILED(check_device(device));
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuMemBatchDecompressAsync(CUmemDecompressParams*, size_t, unsigned, size_t*,
                                           CUstream) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS*, unsigned, unsigned) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuMulticastCreate(CUmemGenericAllocationHandle*, const CUmulticastObjectProp*) {
  RETURN_IF_FAILED(enter_without_context());
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuMulticastGetGranularity(size_t*, const CUmulticastObjectProp*,
                                           CUmulticastGranularity_flags) {
  RETURN_IF_FAILED(enter_without_context());
  return CUDA_ERROR_NOT_SUPPORTED;
}
// Of objects that cannot be made.
SOFTWARE_GPU_API cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) {
  RETURN_IF_FAILED(enter_without_context());
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuMulticastBindMem(CUmemGenericAllocationHandle, size_t,
                                    CUmemGenericAllocationHandle, size_t, size_t,
                                    unsigned long long) {
  RETURN_IF_FAILED(enter_without_context());
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t,
                                     unsigned long long) {
  RETURN_IF_FAILED(enter_without_context());
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t) {
  RETURN_IF_FAILED(enter_without_context());
  return CUDA_ERROR_NOT_SUPPORTED;
}
