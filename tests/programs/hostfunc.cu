// SPDX-License-Identifier: Apache-2.0
// Host functions run in stream order between kernels and copies, and may not call CUDA.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"

__global__ void add(int* value, int amount) { *value += amount; }

struct Step {
  const int* source;  // pinned
  std::vector<int>* seen;
};

static void CUDART_CB note(void* data) {
  const Step* step = static_cast<const Step*>(data);
  step->seen->push_back(*step->source);
}

static void ordered() {
  constexpr int ROUNDS = 50;
  int *device, *pinned;
  CHECK(cudaMalloc(&device, sizeof(int)));
  CHECK(cudaMallocHost(&pinned, sizeof(int)));
  CHECK(cudaMemset(device, 0, sizeof(int)));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  std::vector<int> seen;
  Step step{pinned, &seen};
  for (int i = 0; i < ROUNDS; ++i) {
    add<<<1, 1, 0, stream>>>(device, i);
    CHECK(cudaMemcpyAsync(pinned, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaLaunchHostFunc(stream, note, &step));
  }
  CHECK(cudaStreamSynchronize(stream));
  bool right = seen.size() == ROUNDS;
  for (int i = 0, sum = 0; right && i < ROUNDS; ++i) right = seen[i] == (sum += i);
  report("host functions see each step", right, checksum(seen.data(), seen.size() * sizeof(int)));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(device));
  CHECK(cudaFreeHost(pinned));
}

static std::atomic<int> inside_result{-1};

static void CUDART_CB call_inside(void*) {
  void* pointer = nullptr;
  inside_result = cudaMalloc(&pointer, 16);
}

static void not_permitted() {
  CHECK(cudaLaunchHostFunc(nullptr, call_inside, nullptr));
  CHECK(cudaDeviceSynchronize());
  expect("CUDA call in a host function", static_cast<cudaError_t>(inside_result.load()),
         cudaErrorNotPermitted);
}

static void CUDART_CB on_callback(cudaStream_t, cudaError_t status, void* data) {
  static_cast<std::vector<int>*>(data)->push_back(status);
}

static void callbacks() {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  std::vector<int> statuses;
  for (int i = 0; i < 3; ++i) CHECK(cudaStreamAddCallback(stream, on_callback, &statuses, 0));
  CHECK(cudaStreamSynchronize(stream));
  report("stream callbacks", statuses == std::vector<int>(3, cudaSuccess), statuses.size());
  CHECK(cudaStreamDestroy(stream));
}

static void CUDART_CB wait_for(void* data) {
  while (!static_cast<std::atomic<bool>*>(data)->load()) std::this_thread::yield();
}

static void other_streams_go_on() {
  cudaStream_t blocked, free_stream;
  CHECK(cudaStreamCreateWithFlags(&blocked, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&free_stream, cudaStreamNonBlocking));
  int *device, value = 0;
  CHECK(cudaMalloc(&device, sizeof(int)));
  CHECK(cudaMemset(device, 0, sizeof(int)));
  CHECK(cudaDeviceSynchronize());
  std::atomic<bool> go{false};
  CHECK(cudaLaunchHostFunc(blocked, wait_for, &go));
  add<<<1, 1, 0, free_stream>>>(device, 7);
  CHECK(cudaStreamSynchronize(free_stream));
  const cudaError_t still = cudaStreamQuery(blocked);
  go = true;
  CHECK(cudaStreamSynchronize(blocked));
  CHECK(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  report("other streams go on", still == cudaErrorNotReady && value == 7,
         static_cast<uint64_t>(value));
  CHECK(cudaStreamDestroy(blocked));
  CHECK(cudaStreamDestroy(free_stream));
  CHECK(cudaFree(device));
}

static void CUDART_CB count(void* data) { static_cast<std::atomic<int>*>(data)->fetch_add(1); }

static void in_graph() {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  std::atomic<int> n{0};
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaLaunchHostFunc(stream, count, &n));
  CHECK(cudaLaunchHostFunc(stream, count, &n));
  CHECK(cudaStreamEndCapture(stream, &graph));
  const bool none_yet = n == 0;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 10; ++i) CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  report("host nodes of a graph", none_yet && n == 20, static_cast<uint64_t>(n.load()));
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
}

int main() {
  ordered();
  not_permitted();
  callbacks();
  other_streams_go_on();
  in_graph();
  return finish("hostfunc");
}
