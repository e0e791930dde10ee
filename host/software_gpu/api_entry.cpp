// SPDX-License-Identifier: Apache-2.0
// cuInit, versions, error texts, cuGetProcAddress.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "api.h"

using namespace software_gpu;

namespace {

constexpr int DRIVER_VERSION = 13000;

struct ErrorName {
  CUresult code;
  const char* name;
  const char* text;
};

constexpr ErrorName ERRORS[] = {
#define E(code, text) {code, #code, text}
    E(CUDA_SUCCESS, "no error"),
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    E(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    E(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    E(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    E(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
      "the provided PTX was compiled with an unsupported toolchain"),
    E(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the provided execution affinity is not supported"),
    E(CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type"),
    E(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration"),
    E(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    E(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    E(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    E(CUDA_ERROR_NOT_READY, "device not ready"),
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    E(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    E(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    E(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    E(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    E(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    E(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    E(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    E(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
      "part or all of the requested memory range is already mapped"),
    E(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
      "pointer does not correspond to a registered memory region"),
    E(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    E(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    E(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    E(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
      "operation failed due to a previous error during capture"),
    E(CUDA_ERROR_STREAM_CAPTURE_MERGE,
      "operation would result in a merge of separate capture sequences"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
      "dependency created on uncaptured work in another stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
      "operation would make the legacy stream depend on a capturing blocking stream"),
    E(CUDA_ERROR_CAPTURED_EVENT,
      "operation not permitted on an event last recorded in a capturing stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
      "attempt to terminate a thread-local capture sequence from another thread"),
    E(CUDA_ERROR_LOSSY_QUERY, "attempted introspection would be semantically lossy"),
    E(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef E
};

const ErrorName* find_error(CUresult code) {
  const auto found = std::find_if(std::begin(ERRORS), std::end(ERRORS),
                                  [&](const ErrorName& e) { return e.code == code; });
  return found == std::end(ERRORS) ? nullptr : found;
}

/// Names whose entry point carries a suffix, newest first. `since` is the CUDA version of the
/// suffix.
struct Version {
  const char* name;
  const char* symbol;
  int since;
};

constexpr Version VERSIONS[] = {
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
    {"cuDeviceTotalMem", "cuDeviceTotalMem_v2", 3020},
    {"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11040},
    {"cuDeviceGetUuid", "cuDeviceGetUuid", 9020},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2", 11000},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000},
    {"cuCtxCreate", "cuCtxCreate_v4", 12050},
    {"cuCtxCreate", "cuCtxCreate_v3", 11040},
    {"cuCtxCreate", "cuCtxCreate_v2", 3020},
    {"cuStreamGetCtx", "cuStreamGetCtx_v2", 12050},
    {"cuStreamGetCtx", "cuStreamGetCtx", 9020},
    {"cuGraphAddNode", "cuGraphAddNode_v2", 12030},
    {"cuGraphAddNode", "cuGraphAddNode", 12020},
    {"cuGraphAddDependencies", "cuGraphAddDependencies_v2", 12030},
    {"cuGraphRemoveDependencies", "cuGraphRemoveDependencies_v2", 12030},
    {"cuGraphGetEdges", "cuGraphGetEdges_v2", 12030},
    {"cuGraphNodeGetDependencies", "cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes", "cuGraphNodeGetDependentNodes_v2", 12030},
    {"cuMemAlloc", "cuMemAlloc_v2", 3020},
    {"cuMemFree", "cuMemFree_v2", 3020},
    {"cuMemGetInfo", "cuMemGetInfo_v2", 3020},
    {"cuMemAllocHost", "cuMemAllocHost_v2", 3020},
    {"cuMemHostRegister", "cuMemHostRegister_v2", 6050},
    {"cuMemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2", 3020},
    {"cuMemAllocPitch", "cuMemAllocPitch_v2", 3020},
    {"cuMemGetAddressRange", "cuMemGetAddressRange_v2", 3020},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020},
    {"cuMemcpyDtoH", "cuMemcpyDtoH_v2", 3020},
    {"cuMemcpyDtoD", "cuMemcpyDtoD_v2", 3020},
    {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", 3020},
    {"cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", 3020},
    {"cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", 3020},
    {"cuMemcpy2D", "cuMemcpy2D_v2", 3020},
    {"cuMemcpy2DUnaligned", "cuMemcpy2DUnaligned_v2", 3020},
    {"cuMemcpy2DAsync", "cuMemcpy2DAsync_v2", 3020},
    {"cuMemcpy3D", "cuMemcpy3D_v2", 3020},
    {"cuMemcpy3DAsync", "cuMemcpy3DAsync_v2", 3020},
    {"cuMemcpyDtoA", "cuMemcpyDtoA_v2", 3020},
    {"cuMemcpyAtoD", "cuMemcpyAtoD_v2", 3020},
    {"cuMemcpyHtoA", "cuMemcpyHtoA_v2", 3020},
    {"cuMemcpyAtoH", "cuMemcpyAtoH_v2", 3020},
    {"cuMemcpyAtoA", "cuMemcpyAtoA_v2", 3020},
    {"cuMemcpyHtoAAsync", "cuMemcpyHtoAAsync_v2", 3020},
    {"cuMemcpyAtoHAsync", "cuMemcpyAtoHAsync_v2", 3020},
    {"cuArrayCreate", "cuArrayCreate_v2", 3020},
    {"cuArrayGetDescriptor", "cuArrayGetDescriptor_v2", 3020},
    {"cuArray3DCreate", "cuArray3DCreate_v2", 3020},
    {"cuArray3DGetDescriptor", "cuArray3DGetDescriptor_v2", 3020},
    {"cuTexRefSetAddress", "cuTexRefSetAddress_v2", 3020},
    {"cuTexRefGetAddress", "cuTexRefGetAddress_v2", 3020},
    {"cuTexRefSetAddress2D", "cuTexRefSetAddress2D_v3", 4010},
    {"cuMemsetD8", "cuMemsetD8_v2", 3020},
    {"cuMemsetD16", "cuMemsetD16_v2", 3020},
    {"cuMemsetD32", "cuMemsetD32_v2", 3020},
    {"cuMemAdvise", "cuMemAdvise_v2", 12020},
    {"cuMemAdvise", "cuMemAdvise", 8000},
    {"cuMemPrefetchAsync", "cuMemPrefetchAsync_v2", 12020},
    {"cuMemPrefetchAsync", "cuMemPrefetchAsync", 8000},
    {"cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync", 12080},
    {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", 11000},
    {"cuModuleGetGlobal", "cuModuleGetGlobal_v2", 3020},
    {"cuStreamDestroy", "cuStreamDestroy_v2", 4000},
    {"cuEventDestroy", "cuEventDestroy_v2", 4000},
    {"cuEventElapsedTime", "cuEventElapsedTime_v2", 12080},
    {"cuEventElapsedTime", "cuEventElapsedTime", 2000},
    {"cuStreamWriteValue32", "cuStreamWriteValue32_v2", 11070},
    {"cuStreamWriteValue64", "cuStreamWriteValue64_v2", 11070},
    {"cuStreamWaitValue32", "cuStreamWaitValue32_v2", 11070},
    {"cuStreamWaitValue64", "cuStreamWaitValue64_v2", 11070},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", 11030},
};

bool has_version_suffix(const char* name) {
  const size_t length = strlen(name);
  return length > 3 && name[length - 3] == '_' && name[length - 2] == 'v';
}

/// This library's own symbol, never one of another libcuda in the process.
void* own_symbol(const char* name) {
  static void* const self = [] {
    Dl_info info;
    if (!dladdr(reinterpret_cast<void*>(&own_symbol), &info)) return static_cast<void*>(nullptr);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return self ? dlsym(self, name) : nullptr;
}

}  // namespace

SOFTWARE_GPU_API cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (Driver::instance().is_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  return Driver::instance().initialise() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

SOFTWARE_GPU_API cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = DRIVER_VERSION;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const ErrorName* found = find_error(error);
  *text = found ? found->text : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFTWARE_GPU_API cuGetErrorName(CUresult error, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  const ErrorName* found = find_error(error);
  *name = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFTWARE_GPU_API cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  if (!symbol || !function || version > DRIVER_VERSION ||
      flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  CUdriverProcAddressQueryResult answer = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  bool has_versions = false;
  for (const Version& entry : VERSIONS) {
    if (strcmp(entry.name, symbol) != 0) continue;
    has_versions = true;
    answer = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (version >= 0 && version < entry.since) continue;  // negative: the newest, as natively
    *function = own_symbol(entry.symbol);
    break;
  }
  // As natively, a name that already has its suffix is not found.
  if (!has_versions && strncmp(symbol, "cu", 2) == 0 && !has_version_suffix(symbol))
    *function = own_symbol(symbol);
  if (*function) answer = CU_GET_PROC_ADDRESS_SUCCESS;
  if (status) *status = answer;
  return *function || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
