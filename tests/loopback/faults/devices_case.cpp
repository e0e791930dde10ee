// SPDX-License-Identifier: Apache-2.0
// Needs two devices (KVGPU_SOFTWARE_GPU_DEVICES=2).
#include "../cases/support.h"

TEST_CASE("devices: an event of one orders the work of the other") {
  const Gpu first;
  CUdevice second_device;
  CUcontext second;
  CU(cuDeviceGet(&second_device, 1));
  CU(cuDevicePrimaryCtxRetain(&second, second_device));
  const CUfunction add_one = first.function("add_one");
  int* shared = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&shared), sizeof(int), CU_MEMHOSTALLOC_PORTABLE));
  auto address = reinterpret_cast<CUdeviceptr>(shared);
  int n = 1;
  CUstream here, there;
  CU(cuStreamCreate(&here, CU_STREAM_NON_BLOCKING));
  CU(cuCtxSetCurrent(second));
  CUmodule module;
  CUfunction add_one_there;
  CU(cuModuleLoadData(&module, kernels_ptx()));
  CU(cuModuleGetFunction(&add_one_there, module, "add_one"));
  CU(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
  for (int round = 0; round < 50; ++round) {
    *shared = 0;
    CU(cuCtxSetCurrent(first.context));
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    Gate gate(first, here);
    launch(add_one, here, {&address, &n});
    CU(cuEventRecord(event, here));
    CU(cuCtxSetCurrent(second));
    CU(cuStreamWaitEvent(there, event, 0));
    launch(add_one_there, there, {&address, &n});
    CU_IS(cuStreamQuery(there), CUDA_ERROR_NOT_READY);
    CU(cuCtxSetCurrent(first.context));
    CU(cuEventDestroy(event));
    gate.open();
    CU(cuCtxSetCurrent(second));
    CU(cuStreamSynchronize(there));
    CHECK(*static_cast<volatile int*>(shared) == 2);
    CU(cuCtxSetCurrent(first.context));
  }
}
