// SPDX-License-Identifier: Apache-2.0
// Launches, and what waits for them.
#include <thread>

#include "bench.h"

namespace bench {

namespace {

// A launch beyond what the driver takes waits for the GPU: batches stay below that.
constexpr int BATCH = 100;

void synchronize() { MUST(cuStreamSynchronize(nullptr)); }

// A processor that has slept is slow at first.
template <typename Call>
void warm_up(Call call) {
  for (const auto begin = Clock::now(); us_since(begin) < 100'000;) {
    (void)time_calls_us(1, BATCH, call, synchronize);
  }
}

double launches_per_s(const Gpu& gpu, int n, CUstream stream) {
  const auto begin = Clock::now();
  for (int i = 0; i < n; ++i) gpu.launch(stream);
  MUST(cuStreamSynchronize(stream));
  return n / (us_since(begin) / 1e6);
}

}  // namespace

void launches(const Gpu& gpu, Effort effort) {
  const auto launch = [&] { gpu.launch(); };
  (void)time_calls_us(2, BATCH, launch, synchronize);
  figure("launch_call", time_calls_us(effort.of(200), BATCH, launch, synchronize), "us");
  figure("launches_sustained", launches_per_s(gpu, effort.of(1'000'000), nullptr), "1/s");
}

void waits(const Gpu& gpu, Effort effort) {
  const auto launch_and_wait = [&] {
    gpu.launch();
    synchronize();
  };
  launch_and_wait();
  figure("launch_and_synchronize", time_calls_us(effort.of(4000), 1, launch_and_wait), "us");
  CUevent event = nullptr;
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const auto record_and_wait = [&] {
    MUST(cuEventRecord(event, nullptr));
    MUST(cuEventSynchronize(event));
  };
  record_and_wait();
  figure("event_and_synchronize", time_calls_us(effort.of(4000), 1, record_and_wait), "us");
  MUST(cuEventDestroy(event));
}

void threads(const Gpu& gpu, Effort effort) {
  constexpr int N_THREADS = 8;
  // kvgpu does some thousand launches of each one after the other before it does them side by side.
  const int n = std::max(effort.of(100'000), 30'000);
  std::vector<CUstream> streams(N_THREADS);
  for (CUstream& stream : streams) MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<std::thread> all;
  const auto begin = Clock::now();
  for (const CUstream stream : streams) {
    all.emplace_back([&gpu, stream, n] {
      MUST(cuCtxSetCurrent(gpu.context()));
      (void)launches_per_s(gpu, n, stream);
    });
  }
  for (std::thread& thread : all) thread.join();
  figure("launches_8_threads", N_THREADS * n / (us_since(begin) / 1e6), "1/s");
  for (const CUstream stream : streams) MUST(cuStreamDestroy(stream));
}

void graphs(const Gpu& gpu, Effort effort) {
  constexpr int N_NODES = 100;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = gpu.nothing();
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = 32;
  params.blockDimY = params.blockDimZ = 1;
  MUST(cuGraphCreate(&graph, 0));
  CUgraphNode before = nullptr;
  for (int i = 0; i < N_NODES; ++i) {
    CUgraphNode node = nullptr;
    MUST(cuGraphAddKernelNode(&node, graph, &before, before != nullptr ? 1 : 0, &params));
    before = node;
  }
  MUST(cuGraphInstantiate(&exec, graph, 0));
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const auto launch = [&] { MUST(cuGraphLaunch(exec, stream)); };
  const auto wait = [&] { MUST(cuStreamSynchronize(stream)); };
  (void)time_calls_us(2, 1, launch, wait);
  figure("graph_launch_call", time_calls_us(effort.of(1000), 1, launch, wait), "us");
  MUST(cuStreamDestroy(stream));
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
}

// What the guest's half of a launch costs, and how many records one ring takes: against a driver
// that does nothing (null_driver.cpp).
void records(const Gpu& gpu, Effort effort) {
  const auto launch = [&] { gpu.launch(); };
  // The ring has room for a batch, so that nothing waits for the worker.
  constexpr int IN_RING = 1000;
  warm_up(launch);
  figure("guest_record", 1000 * time_calls_us(effort.of(5000), IN_RING, launch, synchronize), "ns");
  figure("records_sustained", launches_per_s(gpu, effort.of(2'000'000), nullptr) / 1e6, "M/s");
}

// Nothing waits for a place: neither ring nor stream is ever full (benchmarks/instructions.py).
void counted(const Gpu& gpu, Effort) {
  constexpr int N_BATCHES = 20, IN_STREAM = 200;
  (void)time_calls_us(N_BATCHES, IN_STREAM, [&] { gpu.launch(); }, synchronize);
  figure("counted", N_BATCHES * IN_STREAM, "calls");
}

// Launches for so long that processor time can be read meanwhile.
void busy(const Gpu& gpu, Effort effort) {
  const auto begin = Clock::now();
  const double end_us = 1e3 * effort.of(4000);
  int n = 0;
  for (; us_since(begin) < end_us; n += BATCH) {
    for (int i = 0; i < BATCH; ++i) gpu.launch();
  }
  synchronize();
  figure("launched", n, "launches");
}

}  // namespace bench
