// SPDX-License-Identifier: Apache-2.0
// Run on fault_driver with KVGPU_FAULT=cuLaunchKernel:2:ERROR: the second launch fails late.
#include <unistd.h>

#include <future>
#include <thread>

#include "../cases/support.h"

namespace {

// Launches until a call returns an error, which must come; returns how many launches were accepted
// before.
int launch_until_error(const Gpu& gpu, const Ints& data, CUstream stream, CUresult expected) {
  const CUfunction function = gpu.function("add_one");
  CUdeviceptr dptr = data.dptr;
  int n = data.n;
  void* params[] = {&dptr, &n};
  for (int accepted = 0; accepted < 10000; ++accepted) {
    // Of another shape each time, or the worker would make them a graph.
    const unsigned shared_bytes = 4 * static_cast<unsigned>(accepted);
    const CUresult result =
        cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, shared_bytes, stream, params, nullptr);
    if (result == CUDA_SUCCESS) continue;
    CU_IS(result, expected);
    return accepted;
  }
  FAIL("the planted error never came");
  return 0;
}

// The nth launch fails.
void check_nothing_behind(int nth) {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Ints data(1);
  CHECK(launch_until_error(gpu, data, stream, CUDA_ERROR_OUT_OF_MEMORY) >= nth);
  CU(cuStreamSynchronize(stream));
  CHECK(data.read()[0] == nth - 1);  // those before it only: no stale success, no half sequence
  add_one(gpu, data, stream);
  CU(cuStreamSynchronize(stream));
  CHECK(data.read()[0] == nth);
}

}  // namespace

TEST_CASE("poison: nothing after the failed record runs until the error has been returned, once") {
  check_nothing_behind(2);
}

// KVGPU_FAULT=cuLaunchKernel:300:2. The guest is faster than the worker, which gives the driver
// several at a time by then.
TEST_CASE("poison: one of many launches fails, those behind it are skipped") {
  check_nothing_behind(300);
}

TEST_CASE("deferred: an error that no list has poisons as any other does") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Ints data(1);
  CHECK(launch_until_error(gpu, data, stream, CUDA_ERROR_ILLEGAL_STATE) >= 2);
  CU(cuStreamSynchronize(stream));
  CHECK(data.read()[0] == 1);
}

TEST_CASE("poison: a copy back never brings stale data with success") {
  const Gpu gpu;
  const Ints data(1);
  const CUfunction function = gpu.function("add_one");
  CUdeviceptr dptr = data.dptr;
  int n = 1, value = -1;
  void* params[] = {&dptr, &n};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  const CUresult second = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
  const CUresult copied = cuMemcpyDtoH(&value, dptr, sizeof value);
  // One of the two calls has returned it; if it was the copy, there is no data.
  CHECK((second == CUDA_ERROR_OUT_OF_MEMORY) != (copied == CUDA_ERROR_OUT_OF_MEMORY));
  if (copied != CUDA_SUCCESS) CHECK(value == -1);
  CHECK(data.read()[0] == 1);
}

TEST_CASE("poison: who waits for a number behind the failure gets the error, too") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Ints data(1);
  CUevent event;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const CUfunction function = gpu.function("add_one");
  CUdeviceptr dptr = data.dptr;
  int n = 1;
  void* params[] = {&dptr, &n};
  CUresult seen[4];
  seen[0] = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
  seen[1] = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
  seen[2] = cuEventRecord(event, stream);
  if (seen[1] == CUDA_SUCCESS && seen[2] == CUDA_SUCCESS) {
    CU_IS(cuEventSynchronize(event), CUDA_ERROR_OUT_OF_MEMORY);
    // Later work of the stream must not make the lost number look reached.
    add_one(gpu, data, stream);
    CU(cuStreamSynchronize(stream));
    CU_IS(cuEventQuery(event), CUDA_ERROR_OUT_OF_MEMORY);
  }
  CHECK(seen[0] == CUDA_SUCCESS);
}

TEST_CASE("poison: a thread that comes late is told as long as one that was there is not") {
  const Gpu gpu;
  const Ints data(1);
  const auto read_in_new_thread = [&] {
    CUresult result = CUDA_SUCCESS;
    int value = -1;
    std::thread([&] {
      result = cuCtxSetCurrent(gpu.context);
      if (result == CUDA_SUCCESS) result = cuMemcpyDtoH(&value, data.dptr, sizeof value);
    }).join();
    CHECK((result == CUDA_SUCCESS) == (value != -1));
    return result;
  };
  std::promise<void> launched, told;
  CUresult seen = CUDA_SUCCESS;
  std::thread launcher([&] {
    CU(cuCtxSetCurrent(gpu.context));
    const CUfunction function = gpu.function("add_one");
    CUdeviceptr dptr = data.dptr;
    int n = 1;
    void* params[] = {&dptr, &n};
    for (int i = 0; i < 2; ++i) {
      CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    }
    launched.set_value();
    told.get_future().wait();
    seen = cuStreamQuery(nullptr);
  });
  launched.get_future().wait();
  CU_IS(cuStreamSynchronize(nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  CU_IS(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  CU_IS(read_in_new_thread(), CUDA_ERROR_OUT_OF_MEMORY);
  told.set_value();
  launcher.join();
  CU_IS(seen, CUDA_ERROR_OUT_OF_MEMORY);
  CU_IS(read_in_new_thread(), CUDA_SUCCESS);
}

TEST_CASE("sync: the failing call itself returns its error, and nothing else is lost") {
  const Gpu gpu;
  const Ints data(1);
  const CUfunction function = gpu.function("add_one");
  CUdeviceptr dptr = data.dptr;
  int n = 1;
  void* params[] = {&dptr, &n};
  const auto add = [&] {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
  };
  CU_IS(add(), CUDA_SUCCESS);
  CU_IS(add(), CUDA_ERROR_OUT_OF_MEMORY);
  CU_IS(add(), CUDA_SUCCESS);
  CHECK(data.read()[0] == 2);
}

TEST_CASE("sticky: after a corrupted context every call returns its error") {
  const Gpu gpu;
  const Ints data(1);
  launch_until_error(gpu, data, nullptr, CUDA_ERROR_LAUNCH_FAILED);
  int value = -1;
  CU_IS(cuMemcpyDtoH(&value, data.dptr, sizeof value), CUDA_ERROR_LAUNCH_FAILED);
  CHECK(value == -1);
  CUstream stream;
  CU_IS(cuStreamCreate(&stream, 0), CUDA_ERROR_LAUNCH_FAILED);
  CU_IS(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  CUdeviceptr dptr;
  CU_IS(cuMemAlloc(&dptr, 16), CUDA_ERROR_LAUNCH_FAILED);
}
