// SPDX-License-Identifier: Apache-2.0
// The forms of CUDA before 3.2: a program that finds them by their names gets an error, and nothing
// is done. And what is switched on and off, or registered, without an effect to be seen.
#include <string>

#include "graph_support.h"
#include "profiler.h"
#include "support.h"

namespace {

using OlderForm = CUresult (*)(void*, void*, void*, void*, void*, void*);

const char* const OLDER_FORMS[] = {
    "cuMemAlloc",
    "cuMemAllocHost",
    "cuMemAllocPitch",
    "cuMemFree",
    "cuMemGetInfo",
    "cuMemGetAddressRange",
    "cuMemHostGetDevicePointer",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyDtoD",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoA",
    "cuMemcpyAtoD",
    "cuMemcpyHtoA",
    "cuMemcpyAtoH",
    "cuMemcpyAtoA",
    "cuMemcpyHtoAAsync",
    "cuMemcpyAtoHAsync",
    "cuMemcpy2D",
    "cuMemcpy2DUnaligned",
    "cuMemcpy2DAsync",
    "cuMemcpy3D",
    "cuMemcpy3DAsync",
    "cuMemsetD8",
    "cuMemsetD16",
    "cuMemsetD32",
    "cuMemsetD2D8",
    "cuMemsetD2D16",
    "cuMemsetD2D32",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuCtxPushCurrent",
};

// Zeroes all around what the driver may take for an object: it answers by what it finds there.
CUresult call_older(const std::string& name) {
  const auto function = first_form<OlderForm>(name.c_str());
  std::vector<unsigned> zeroes(1 << 16);
  void* const middle = &zeroes[zeroes.size() / 2];
  return function(middle, middle, middle, middle, middle, middle);
}

}  // namespace

TEST_CASE("older forms: a context of today does not take 32-bit addresses and sizes") {
  const Gpu gpu;
  for (const std::string name : OLDER_FORMS) {
    CAPTURE(name);
    CU_IS(call_older(name), CUDA_ERROR_INVALID_CONTEXT);
  }
  unsigned free = ~0u, total = ~0u;
  using GetInfo = CUresult (*)(unsigned*, unsigned*);
  const auto get_info = first_form<GetInfo>("cuMemGetInfo");
  CU_IS(get_info(&free, &total), CUDA_ERROR_INVALID_CONTEXT);
  CU_IS(call_older("cuModuleGetGlobal"), CUDA_ERROR_INVALID_HANDLE);  // the zeroes are no module
  using GetGlobal = CUresult (*)(unsigned*, unsigned*, CUmodule, const char*);
  const auto get_global = first_form<GetGlobal>("cuModuleGetGlobal");
  CU_IS(get_global(&free, &total, gpu.module, "counter"), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("older forms: a context that is beneath another is not destroyed") {
  const Gpu gpu;
  const auto destroy = first_form<decltype(&cuCtxDestroy)>("cuCtxDestroy");
  CUcontext first = nullptr, second = nullptr;
  CU(cuCtxCreate(&first, nullptr, 0, gpu.device));
  CU(cuCtxCreate(&second, nullptr, 0, gpu.device));
  CU_IS(destroy(nullptr), CUDA_ERROR_INVALID_VALUE);
  CU_IS(destroy(first), CUDA_ERROR_INVALID_CONTEXT);
  CU(destroy(second));
  CU(destroy(first));
}

TEST_CASE("older forms: a batch of more operations than there may be") {
  const Gpu gpu;
  const Stream stream;
  const auto batch = first_form<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  CUstreamBatchMemOpParams operation{};
  CU_IS(batch(stream.handle, ~0u, &operation, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("profiler: its switches work where there is none, in any order") {
  {
    const Gpu gpu;
    CU(cuProfilerStop());
    CU(cuProfilerStart());
    CU(cuProfilerStart());
    CU(cuProfilerStop());
  }
  for (CUcontext current = nullptr;
       cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr;) {
    CU(cuCtxPopCurrent(&current));
  }
  CU_IS(cuProfilerStart(), CUDA_ERROR_INVALID_CONTEXT);
  CU_IS(cuProfilerStop(), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("notification: callbacks are kept for a device until they are taken back") {
  const Gpu gpu;
  const CUasyncCallback never = [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {
    FAIL("nothing was to be told");
  };
  CUasyncCallbackHandle first = nullptr, second = nullptr;
  CU(cuDeviceRegisterAsyncNotification(gpu.device, never, nullptr, &first));
  CU(cuDeviceRegisterAsyncNotification(gpu.device, never, nullptr, &second));
  CHECK(first != second);
  CU_IS(cuDeviceRegisterAsyncNotification(gpu.device, nullptr, nullptr, &second),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuDeviceUnregisterAsyncNotification(gpu.device, first));
  CU(cuDeviceUnregisterAsyncNotification(gpu.device, second));
}

TEST_CASE("flush: what other devices have written is seen by whom one says") {
  const Gpu gpu;
  CU(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
  CU(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES));
  CU_IS(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                   static_cast<CUflushGPUDirectRDMAWritesScope>(1)),
        CUDA_ERROR_INVALID_VALUE);
}
