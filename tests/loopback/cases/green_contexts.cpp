// SPDX-License-Identifier: Apache-2.0
// Green contexts and device resources, events of whole contexts, execution affinity.
#include "support.h"

namespace {

CUdevResource sms_of(const Gpu& gpu) {
  CUdevResource all{};
  CU(cuDeviceGetDevResource(gpu.device, &all, CU_DEV_RESOURCE_TYPE_SM));
  return all;
}

// Of as few SMs as there can be.
struct Green {
  explicit Green(const Gpu& gpu) {
    const CUdevResource all = sms_of(gpu);
    unsigned n = 1;
    CU(cuDevSmResourceSplitByCount(&part, &n, &all, nullptr, 0, all.sm.minSmPartitionSize));
    CUdevResourceDesc desc = nullptr;
    CU(cuDevResourceGenerateDesc(&desc, &part, 1));
    CU(cuGreenCtxCreate(&handle, desc, gpu.device, CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuGreenCtxStreamCreate(&stream, handle, CU_STREAM_NON_BLOCKING, 0));
  }
  ~Green() {
    cuStreamDestroy(stream);
    cuGreenCtxDestroy(handle);
  }
  Green(const Green&) = delete;
  Green& operator=(const Green&) = delete;
  CUdevResource part{};
  CUgreenCtx handle = nullptr;
  CUstream stream = nullptr;
};

struct Event {
  Event() { CU(cuEventCreate(&handle, CU_EVENT_DISABLE_TIMING)); }
  ~Event() { cuEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  CUevent handle = nullptr;
};

}  // namespace

TEST_CASE("green context: the device's SMs are split into equal groups") {
  const Gpu gpu;
  const CUdevResource all = sms_of(gpu);
  int n_sms = 0;
  CU(cuDeviceGetAttribute(&n_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu.device));
  CHECK(all.type == CU_DEV_RESOURCE_TYPE_SM);
  CHECK(all.sm.smCount == static_cast<unsigned>(n_sms));
  const unsigned least = all.sm.minSmPartitionSize;
  REQUIRE(least > 0);
  unsigned n = 0;
  CU(cuDevSmResourceSplitByCount(nullptr, &n, &all, nullptr, 0, least));
  REQUIRE(n > 0);
  std::vector<CUdevResource> groups(n);
  CUdevResource rest{};
  CU(cuDevSmResourceSplitByCount(groups.data(), &n, &all, &rest, 0, least));
  REQUIRE(n == groups.size());
  unsigned sum = 0;
  for (const CUdevResource& group : groups) {
    CHECK(group.type == CU_DEV_RESOURCE_TYPE_SM);
    CHECK(group.sm.smCount >= least);
    CHECK(group.sm.smCount == groups[0].sm.smCount);
    sum += group.sm.smCount;
  }
  CHECK(sum <= all.sm.smCount);
  unsigned one = 1;
  CU(cuDevSmResourceSplitByCount(groups.data(), &one, &all, nullptr, 0, least));
  CHECK(one == 1);
}

TEST_CASE("green context: resources that cannot be had") {
  const Gpu gpu;
  const CUdevResource all = sms_of(gpu);
  CUdevResource found{}, none{};
  CU_IS(cuDeviceGetDevResource(999, &found, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_DEVICE);
  CU_IS(cuDeviceGetDevResource(gpu.device, &found, CU_DEV_RESOURCE_TYPE_INVALID),
        CUDA_ERROR_INVALID_RESOURCE_TYPE);
  unsigned n = 1;
  CHECK(cuDevSmResourceSplitByCount(&found, &n, &all, nullptr, 0, all.sm.smCount + 1) !=
        CUDA_SUCCESS);
  CHECK(cuDevSmResourceSplitByCount(&found, &n, &none, nullptr, 0, 1) != CUDA_SUCCESS);
  CUdevResourceDesc desc;
  CUdevResource made_up{};
  made_up.type = CU_DEV_RESOURCE_TYPE_SM;
  CU_IS(cuDevResourceGenerateDesc(&desc, &made_up, 1), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CUdevResource some = all;
  CU(cuDevResourceGenerateDesc(&desc, &some, 1));
  CUgreenCtx green = nullptr;
  CU_IS(cuGreenCtxCreate(&green, desc, gpu.device, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("green context: streams of its own, memory and kernels of the primary context") {
  const Gpu gpu;
  const Ints data(64, 5);
  const Green green(gpu);
  add_one(gpu, data, green.stream);
  CU(cuStreamSynchronize(green.stream));
  CHECK(data.read() == std::vector<int>(64, 6));

  CUdevResource own{};
  CU(cuGreenCtxGetDevResource(green.handle, &own, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(own.sm.smCount == green.part.sm.smCount);
  unsigned flags = 0;
  CU(cuStreamGetFlags(green.stream, &flags));
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CUgreenCtx owner = nullptr;
  CU(cuStreamGetGreenCtx(green.stream, &owner));
  CHECK(owner == green.handle);
  CUcontext context = nullptr;
  CU(cuStreamGetCtx_v2(green.stream, &context, &owner));
  CHECK(context == gpu.context);
  CHECK(owner == green.handle);
  CU(cuStreamGetGreenCtx(nullptr, &owner));
  CHECK(owner == nullptr);
  CUstream blocking;
  CU_IS(cuGreenCtxStreamCreate(&blocking, green.handle, CU_STREAM_DEFAULT, 0),
        CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("green context: keeps the primary context") {
  const Gpu gpu;
  const Ints data(8);
  const Green green(gpu);
  CUresult released = CUDA_SUCCESS;
  while (released == CUDA_SUCCESS) released = cuDevicePrimaryCtxRelease(gpu.device);
  CU_IS(released, CUDA_ERROR_NOT_PERMITTED);
  CU_IS(cuDevicePrimaryCtxReset(gpu.device), CUDA_ERROR_NOT_PERMITTED);
  unsigned flags = 0;
  int active = 0;
  CU(cuDevicePrimaryCtxGetState(gpu.device, &flags, &active));
  CHECK(active == 1);
  CUcontext again = nullptr;
  CU(cuDevicePrimaryCtxRetain(&again, gpu.device));
  CHECK(again == gpu.context);
  add_one(gpu, data, green.stream);
  CU(cuStreamSynchronize(green.stream));
  CHECK(data.read() == std::vector<int>(8, 1));
}

TEST_CASE("green context: current to a thread as a context") {
  const Gpu gpu;
  const Ints data(8);
  const Green green(gpu);
  CUcontext context = nullptr, found = nullptr;
  // Its handle is no context's yet.
  CU_IS(cuCtxPushCurrent(reinterpret_cast<CUcontext>(green.handle)), CUDA_ERROR_INVALID_CONTEXT);
  CU(cuCtxFromGreenCtx(&context, green.handle));
  CHECK(context != gpu.context);
  CU(cuCtxPushCurrent(context));
  CU(cuCtxGetCurrent(&found));
  CHECK(found == context);
  CUdevResource own{};
  CU(cuCtxGetDevResource(context, &own, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(own.sm.smCount == green.part.sm.smCount);
  CUgreenCtx owner = nullptr;
  CU(cuStreamGetGreenCtx(nullptr, &owner));
  CHECK(owner == green.handle);
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  unsigned flags = 0;
  CU(cuStreamGetFlags(stream, &flags));
  CHECK(flags == CU_STREAM_NON_BLOCKING);  // a green context has no others
  CU(cuStreamGetGreenCtx(stream, &owner));
  CHECK(owner == green.handle);
  add_one(gpu, data, nullptr);
  CU(cuCtxSynchronize());
  add_one(gpu, data, stream);
  CU(cuStreamSynchronize(stream));
  CU(cuStreamDestroy(stream));
  unsigned long long id = 0, green_id = 0, same = 0, primary_id = 0;
  CU(cuCtxGetId(context, &id));
  CU(cuGreenCtxGetId(green.handle, &green_id));
  CU(cuGreenCtxGetId(nullptr, &same));
  CHECK(green_id == same);
  CU(cuCtxPopCurrent(&found));
  CHECK(found == context);
  CU(cuCtxGetId(gpu.context, &primary_id));
  CHECK(id != primary_id);
  CHECK(data.read() == std::vector<int>(8, 2));
}

TEST_CASE("green context: memory outlives it, its streams do not") {
  const Gpu gpu;
  CUdevResource all = sms_of(gpu);
  CUdevResourceDesc desc = nullptr;
  CU(cuDevResourceGenerateDesc(&desc, &all, 1));
  CUgreenCtx green = nullptr;
  CU(cuGreenCtxCreate(&green, desc, gpu.device, CU_GREEN_CTX_DEFAULT_STREAM));
  CUcontext context = nullptr;
  CU(cuCtxFromGreenCtx(&context, green));
  CU(cuCtxSetCurrent(context));
  CUdeviceptr dptr = 0;
  CU(cuMemAlloc(&dptr, 4));
  CU(cuMemsetD32(dptr, 7, 1));
  CU(cuCtxSynchronize());  // another context's copy does not wait for it
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuCtxSetCurrent(gpu.context));
  CU(cuGreenCtxDestroy(green));
  CU_IS(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  int value = 0;
  CU(cuMemcpyDtoH(&value, dptr, 4));
  CHECK(value == 7);
  CU(cuMemFree(dptr));
}

TEST_CASE("context: an event stands for all work of a green or a whole context") {
  const Gpu gpu;
  const Ints data(4);
  const Green green(gpu);
  CUstream plain = nullptr;
  CU(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  const Event of_green, of_all;
  {
    Gate gate(gpu, plain);
    CU(cuGreenCtxRecordEvent(green.handle, of_green.handle));
    CU(cuCtxRecordEvent(gpu.context, of_all.handle));
    CU_IS(cuEventQuery(of_all.handle), CUDA_ERROR_NOT_READY);
    CU(cuGreenCtxWaitEvent(green.handle, of_all.handle));
    add_one(gpu, data, green.stream);
    CU_IS(cuStreamQuery(green.stream), CUDA_ERROR_NOT_READY);
    gate.open();
    CU(cuStreamSynchronize(green.stream));
    CU_IS(cuEventQuery(of_all.handle), CUDA_SUCCESS);
  }
  {
    Gate gate(gpu, green.stream);
    CU(cuGreenCtxRecordEvent(green.handle, of_green.handle));
    CU(cuCtxWaitEvent(gpu.context, of_green.handle));
    add_one(gpu, data, plain);
    CU_IS(cuStreamQuery(plain), CUDA_ERROR_NOT_READY);
    gate.open();
    CU(cuStreamSynchronize(plain));
  }
  CHECK(data.read() == std::vector<int>(4, 2));
  CU(cuStreamDestroy(plain));
}

TEST_CASE("context: no event of a whole context while one of its streams is captured") {
  const Gpu gpu;
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Event event;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU_IS(cuCtxRecordEvent(gpu.context, event.handle), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CU(cuStreamDestroy(stream));
}

TEST_CASE("context: execution affinity where there is none") {
  const Gpu gpu;
  int supported = -1;
  CU(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, gpu.device));
  REQUIRE((supported == 0 || supported == 1));
  if (supported) return;  // under MPS
  CUexecAffinityParam affinity{};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  affinity.param.smCount.val = 1;
  CUexecAffinityParam all{};
  CU(cuCtxGetExecAffinity(&all, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
  CHECK(all.param.smCount.val == sms_of(gpu).sm.smCount);
  CUctxCreateParams params{&affinity, 1, nullptr};
  CUcontext context = nullptr;
  CHECK(cuCtxCreate(&context, &params, 0, gpu.device) != CUDA_SUCCESS);
}
