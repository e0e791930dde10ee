// SPDX-License-Identifier: Apache-2.0
// Calls that only ask, and memory that comes and goes.
#include <cuda_runtime_api.h>

#include "bench.h"

namespace bench {

void queries(const Gpu& gpu, Effort effort) {
  const int n_batches = effort.of(100);
  constexpr int BATCH = 1000;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  MUST(cuMemAlloc(&memory, MIB));
  gpu.launch();
  MUST(cuEventRecord(event, nullptr));
  MUST(cuEventSynchronize(event));
  figure("event_query", time_calls_us(n_batches, BATCH, [&] { MUST(cuEventQuery(event)); }), "us");
  const auto get_context = [] {
    CUcontext current = nullptr;
    MUST(cuCtxGetCurrent(&current));
  };
  figure("get_current_context", time_calls_us(n_batches, BATCH, get_context), "us");
  const auto get_attribute = [&] {
    unsigned type = 0;
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
  };
  figure("pointer_attribute", time_calls_us(n_batches, BATCH, get_attribute), "us");
  const auto get_info = [] {
    size_t free_bytes = 0, total_bytes = 0;
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  };
  figure("memory_info", time_calls_us(n_batches, 10, get_info), "us");
  MUST(cuMemFree(memory));
  MUST(cuEventDestroy(event));
}

// The runtime does not run on the software GPU itself, so this is a subject of its own.
void runtime(const Gpu&, Effort effort) {
  const auto get_device = [] {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) must(CUDA_ERROR_UNKNOWN, "cudaGetDevice");
  };
  figure("get_device", time_calls_us(effort.of(100), 1000, get_device), "us");
}

void memory(const Gpu&, Effort effort) {
  const auto allocate_and_free = [] {
    CUdeviceptr address = 0;
    MUST(cuMemAlloc(&address, MIB));
    MUST(cuMemFree(address));
  };
  allocate_and_free();
  figure("alloc_and_free", time_calls_us(effort.of(500), 1, allocate_and_free), "us");
  std::vector<CUdeviceptr> addresses;
  const auto allocate = [&] { MUST(cuMemAllocAsync(&addresses.emplace_back(), MIB, nullptr)); };
  const auto give_back = [&] {
    for (const CUdeviceptr address : addresses) MUST(cuMemFreeAsync(address, nullptr));
    addresses.clear();
  };
  allocate();
  give_back();
  figure("alloc_async", time_calls_us(effort.of(2000), 1, allocate, give_back), "us");
  MUST(cuStreamSynchronize(nullptr));
}

}  // namespace bench
