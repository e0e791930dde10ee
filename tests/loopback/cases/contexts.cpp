// SPDX-License-Identifier: Apache-2.0
// Contexts of cuCtxCreate beside the primary one.
#include <thread>

#include "support.h"

// What CUDA 13.0 calls deprecated is still called by programs.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

CUcontext current() {
  CUcontext context = nullptr;
  CU(cuCtxGetCurrent(&context));
  return context;
}

CUcontext create(const Gpu& gpu, unsigned flags = 0) {
  CUcontext context = nullptr;
  CU(cuCtxCreate(&context, nullptr, flags, gpu.device));
  return context;
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
  return free;
}

bool comes_back_after_ten(const Gpu& gpu) {
  const size_t before = free_bytes();
  for (int i = 0; i < 10; ++i) {
    const CUcontext context = create(gpu);
    CUdeviceptr dptr = 0;
    CU(cuMemAlloc(&dptr, 64 << 20));
    CU(cuMemsetD32(dptr, 7, 16));
    CU(cuCtxDestroy(context));
  }
  return free_bytes() + (128 << 20) > before;
}

}  // namespace

TEST_CASE("context: a stack for each thread, several contexts on one device") {
  const Gpu gpu;
  const CUcontext first = create(gpu), second = create(gpu, CU_CTX_SCHED_YIELD);
  CHECK(first != second);
  CHECK(first != gpu.context);
  CHECK(current() == second);
  CUcontext popped = nullptr;
  CU(cuCtxPopCurrent(&popped));
  CHECK(popped == second);
  CHECK(current() == first);
  CU(cuCtxPushCurrent(gpu.context));
  CHECK(current() == gpu.context);
  CU(cuCtxSetCurrent(second));
  CHECK(current() == second);
  CU(cuCtxPopCurrent(&popped));
  CHECK(current() == first);
  std::thread([&] {
    CHECK(current() == nullptr);
    CUdevice device;
    CU_IS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    CUdeviceptr dptr;
    CU_IS(cuMemAlloc(&dptr, 4), CUDA_ERROR_INVALID_CONTEXT);
    CU_IS(cuCtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT);
    CU(cuCtxSetCurrent(second));
    CU(cuCtxGetDevice(&device));
    CHECK(device == gpu.device);
  }).join();
  unsigned long long ids[3];
  CU(cuCtxGetId(gpu.context, &ids[0]));
  CU(cuCtxGetId(first, &ids[1]));
  CU(cuCtxGetId(second, &ids[2]));
  CHECK(ids[0] != ids[1]);
  CHECK(ids[1] != ids[2]);
  unsigned version = 0;
  CU(cuCtxGetApiVersion(first, &version));
  CHECK(version >= 3020);
  CU(cuCtxDestroy(second));
  CHECK(current() == first);
  CU(cuCtxDestroy(first));
  CHECK(current() == gpu.context);
}

TEST_CASE("context: work in each; one that is destroyed leaves the others alone") {
  const Gpu gpu;
  const Ints primary_data(4);
  const CUcontext context = create(gpu);
  CUmodule module;
  CU(cuModuleLoadData(&module, kernels_ptx()));
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "add_one"));
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUcontext owner = nullptr;
  CU(cuStreamGetCtx(stream, &owner));
  CHECK(owner == context);
  CUdeviceptr dptr = 0;
  CU(cuMemAlloc(&dptr, 16));
  CU(cuMemsetD32Async(dptr, 41, 4, stream));
  int n = 4;
  launch(function, stream, {&dptr, &n}, 4);
  int values[4] = {};
  CU(cuMemcpyDtoHAsync(values, dptr, sizeof values, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(values[3] == 42);
  CU(cuCtxSynchronize());
  CU(cuCtxDestroy(context));
  CHECK(current() == gpu.context);
  add_one(gpu, primary_data, nullptr);
  CHECK(primary_data.read() == std::vector<int>(4, 1));
}

TEST_CASE("context: destroyed while another thread has it current") {
  const Gpu gpu;
  const CUcontext context = create(gpu);
  std::thread([&] {
    CU(cuCtxSetCurrent(context));
    std::thread([&] { CU(cuCtxDestroy(context)); }).join();
    CUdeviceptr dptr;
    CU_IS(cuMemAlloc(&dptr, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CU(cuCtxSetCurrent(gpu.context));
    CU(cuMemAlloc(&dptr, 16));
    CU(cuMemFree(dptr));
  }).join();
  // Driver 580 makes even such a context current; nothing can be done in it.
  if (cuCtxSetCurrent(context) == CUDA_SUCCESS) {
    CUdeviceptr dptr;
    CU_IS(cuMemAlloc(&dptr, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
  CU(cuCtxSetCurrent(gpu.context));
}

// What is free on a GPU is so to all of its processes, and others may have come meanwhile.
TEST_CASE("context: ten made and destroyed, memory comes back") {
  const Gpu gpu;
  const Ints warm(1);
  CU(cuCtxDestroy(create(gpu)));
  bool came_back = false;
  for (int i = 0; i < 8 && !came_back; ++i) came_back = comes_back_after_ten(gpu);
  CHECK(came_back);
}

TEST_CASE("context: created before the primary one, destroyed first") {
  CU(cuInit(0));
  CUcontext context = nullptr;
  CU(cuCtxCreate(&context, nullptr, 0, 0));
  CUdeviceptr dptr = 0;
  CU(cuMemAlloc(&dptr, 16));
  const Gpu gpu;
  const Ints data(4);
  CU(cuCtxDestroy(context));
  CU(cuCtxSetCurrent(gpu.context));
  add_one(gpu, data, nullptr);
  CU(cuStreamSynchronize(nullptr));
  CHECK(data.read() == std::vector<int>(4, 1));
}

TEST_CASE("context: flags, configuration, limits") {
  const Gpu gpu;
  const CUcontext context = create(gpu, CU_CTX_SCHED_BLOCKING_SYNC);
  unsigned flags = 0;
  CU(cuCtxGetFlags(&flags));
  CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
  CU(cuCtxSetFlags(CU_CTX_SCHED_SPIN));
  CU(cuCtxGetFlags(&flags));
  CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_SPIN);
  CU(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  CUfunc_cache cache;
  CU(cuCtxGetCacheConfig(&cache));
  CHECK((cache == CU_FUNC_CACHE_PREFER_L1 || cache == CU_FUNC_CACHE_PREFER_NONE));
  CU(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
  CUsharedconfig shared;
  CU(cuCtxGetSharedMemConfig(&shared));
  CU(cuCtxResetPersistingL2Cache());
  size_t bytes = 0;
  for (const CUlimit limit : {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE}) {
    CU(cuCtxGetLimit(&bytes, limit));
    const size_t wanted = bytes * 2;
    CU(cuCtxSetLimit(limit, wanted));
    CU(cuCtxGetLimit(&bytes, limit));
    CHECK(bytes >= wanted);
  }
  CHECK(cuCtxGetLimit(&bytes, static_cast<CUlimit>(999)) != CUDA_SUCCESS);
  CUcontext none = nullptr;
  CU_IS(cuCtxCreate(&none, nullptr, 1u << 30, gpu.device), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuCtxCreate(&none, nullptr, 0, 999), CUDA_ERROR_INVALID_DEVICE);
  CU(cuCtxDestroy(context));
}
