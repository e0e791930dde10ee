// SPDX-License-Identifier: Apache-2.0
// Errors whose native outcome is documented: bad launches, bad arguments, and a fault that sticks.
#include "check.h"

__global__ void touch(int* pointer, int value) { *pointer = value; }
__global__ void nothing() {}

static void bad_launches() {
  nothing<<<1, 2048>>>();
  expect("too many threads", cudaGetLastError(), cudaErrorInvalidValue);
  expect("the error is gone after it was read", cudaGetLastError(), cudaSuccess);
  nothing<<<0, 32>>>();
  expect("empty grid", cudaGetLastError(), cudaErrorInvalidValue);
  nothing<<<1, dim3(1, 1, 128)>>>();
  expect("block too deep", cudaGetLastError(), cudaErrorInvalidValue);
  nothing<<<1, 32, 1 << 20>>>();
  expect("too much shared memory", cudaGetLastError(), cudaErrorInvalidValue);
  nothing<<<1, 32>>>();
  expect("a good launch after bad ones", cudaGetLastError(), cudaSuccess);
  expect("its completion", cudaDeviceSynchronize(), cudaSuccess);
}

static void bad_arguments() {
  int* device;
  CHECK(cudaMalloc(&device, 1024));
  int host[4] = {};
  expect("copy from null", cudaMemcpy(device, nullptr, 16, cudaMemcpyHostToDevice),
         cudaErrorInvalidValue);
  expect("copy beyond the allocation",
         cudaMemcpy(device, host, 1ull << 40, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  void* huge = nullptr;
  expect("more memory than there is", cudaMalloc(&huge, 1ull << 46), cudaErrorMemoryAllocation);
  expect("free of null", cudaFree(nullptr), cudaSuccess);
  expect("free of the middle", cudaFree(device + 64), cudaErrorInvalidValue);
  expect("no such device", cudaSetDevice(1000), cudaErrorInvalidDevice);
  cudaEvent_t event, untimed;
  CHECK(cudaEventCreate(&event));
  CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  float ms;
  expect("time of an event never recorded", cudaEventElapsedTime(&ms, event, event),
         cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(untimed));
  CHECK(cudaEventSynchronize(untimed));
  expect("time of an event without timing", cudaEventElapsedTime(&ms, untimed, untimed),
         cudaErrorInvalidResourceHandle);
  CHECK(cudaEventDestroy(event));
  CHECK(cudaEventDestroy(untimed));
  static_cast<void>(cudaGetLastError());
  int value = 0;
  touch<<<1, 1>>>(device, 42);
  CHECK(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  report("work after all these errors", value == 42, static_cast<uint64_t>(value));
  CHECK(cudaFree(device));
}

static void fault() {
  int* device;
  CHECK(cudaMalloc(&device, 1024));
  touch<<<1, 1>>>(reinterpret_cast<int*>(0x10), 1);
  expect("the launch itself", cudaGetLastError(), cudaSuccess);
  expect("synchronisation after a bad store", cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  expect("the error sticks: synchronise", cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  void* more;
  expect("the error sticks: allocate", cudaMalloc(&more, 16), cudaErrorIllegalAddress);
  int value;
  expect("the error sticks: copy", cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost),
         cudaErrorIllegalAddress);
  nothing<<<1, 1>>>();
  expect("the error sticks: launch", cudaGetLastError(), cudaErrorIllegalAddress);
}

int main() {
  bad_launches();
  bad_arguments();
  fault();
  return finish("errors");
}
