// SPDX-License-Identifier: Apache-2.0
// Stream capture: fork and join, what is refused while it goes on, modes and threads.
#include <thread>
#include <vector>

#include "check.h"

__global__ void add(int* value, int amount) { atomicAdd(value, amount); }

static int* counter;

static int read_counter() {
  int value = 0;
  CHECK(cudaMemcpy(&value, counter, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

static void reset_counter() {
  CHECK(cudaMemset(counter, 0, sizeof(int)));
  CHECK(cudaDeviceSynchronize());
}

static void fork_and_join() {
  reset_counter();
  cudaStream_t origin, branch;
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamCreate(&origin));
  CHECK(cudaStreamCreate(&branch));
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  CHECK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
  add<<<1, 1, 0, origin>>>(counter, 1);
  CHECK(cudaEventRecord(fork, origin));
  CHECK(cudaStreamWaitEvent(branch, fork, 0));
  add<<<1, 1, 0, branch>>>(counter, 10);
  add<<<1, 1, 0, origin>>>(counter, 100);
  cudaStreamCaptureStatus status;
  CHECK(cudaStreamIsCapturing(branch, &status));
  const bool branch_captures = status == cudaStreamCaptureStatusActive;
  CHECK(cudaEventRecord(join, branch));
  CHECK(cudaStreamWaitEvent(origin, join, 0));
  add<<<1, 1, 0, origin>>>(counter, 1000);
  CHECK(cudaStreamEndCapture(origin, &graph));
  report("fork and join: the branch captures", branch_captures);
  report("nothing ran during the capture", read_counter() == 0);
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) CHECK(cudaGraphLaunch(exec, origin));
  CHECK(cudaStreamSynchronize(origin));
  const int value = read_counter();
  report("fork and join: result", value == 3333, static_cast<uint64_t>(value));
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaEventDestroy(fork));
  CHECK(cudaEventDestroy(join));
  CHECK(cudaStreamDestroy(origin));
  CHECK(cudaStreamDestroy(branch));
}

/// End a capture that was invalidated.
static void expect_invalidated(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  expect("  and the capture is invalid", cudaStreamEndCapture(stream, &graph),
         cudaErrorStreamCaptureInvalidated);
  static_cast<void>(cudaGetLastError());
}

static void refused_calls() {
  cudaStream_t stream, other;
  cudaGraph_t graph;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamCreate(&other));

  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  expect("synchronise a capturing stream", cudaStreamSynchronize(stream),
         cudaErrorStreamCaptureUnsupported);
  expect_invalidated(stream);

  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  expect("query a capturing stream", cudaStreamQuery(stream), cudaErrorStreamCaptureUnsupported);
  expect_invalidated(stream);

  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  add<<<1, 1>>>(counter, 1);
  expect("use of the legacy stream", cudaGetLastError(), cudaErrorStreamCaptureImplicit);
  expect_invalidated(stream);

  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  void* memory = nullptr;
  expect("cudaMalloc in global mode", cudaMalloc(&memory, 1 << 20),
         cudaErrorStreamCaptureUnsupported);
  expect_invalidated(stream);

  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  expect("cudaMalloc in relaxed mode", cudaMalloc(&memory, 1 << 20), cudaSuccess);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaFree(memory));

  expect("end without begin", cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
  expect("capture of the legacy stream",
         cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
         cudaErrorStreamCaptureUnsupported);
  static_cast<void>(cudaGetLastError());

  cudaEvent_t event;
  CHECK(cudaEventCreate(&event));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CHECK(cudaEventRecord(event, stream));
  CHECK(cudaStreamWaitEvent(other, event, 0));
  add<<<1, 1, 0, other>>>(counter, 1);
  expect("end with unjoined work", cudaStreamEndCapture(stream, &graph),
         cudaErrorStreamCaptureUnjoined);
  static_cast<void>(cudaGetLastError());

  CHECK(cudaEventDestroy(event));
  CHECK(cudaEventCreate(&event));
  CHECK(cudaEventRecord(event, other));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  expect("wait for an event outside", cudaStreamWaitEvent(stream, event, 0),
         cudaErrorStreamCaptureIsolation);
  expect_invalidated(stream);
  CHECK(cudaEventDestroy(event));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaStreamDestroy(other));
}

static void threads() {
  cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  cudaError_t from_thread = cudaSuccess;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  std::thread([&] { from_thread = cudaStreamEndCapture(stream, &graph); }).join();
  expect("end from another thread", from_thread, cudaErrorStreamCaptureWrongThread);
  expect("  and the capture is over", cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
  static_cast<void>(cudaGetLastError());

  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  void* memory = nullptr;
  std::thread([&] {
    from_thread = cudaMalloc(&memory, 1 << 20);
    cudaFree(memory);
  }).join();
  expect("cudaMalloc in another thread, thread-local mode", from_thread, cudaSuccess);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));

  // One thread captures its own per-thread stream while another uses its own for real work.
  reset_counter();
  CHECK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal));
  add<<<1, 1, 0, cudaStreamPerThread>>>(counter, 1000);
  std::thread([&] {
    add<<<1, 1, 0, cudaStreamPerThread>>>(counter, 5);
    from_thread = cudaStreamSynchronize(cudaStreamPerThread);
  }).join();
  expect("per-thread stream of another thread", from_thread, cudaSuccess);
  CHECK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
  const int value = read_counter();
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphLaunch(exec, cudaStreamPerThread));
  CHECK(cudaStreamSynchronize(cudaStreamPerThread));
  CHECK(cudaGraphExecDestroy(exec));
  const int after = read_counter();
  report("per-thread streams are separate", value == 5 && after == 1005,
         static_cast<uint64_t>(after));
  CHECK(cudaGraphDestroy(graph));
}

int main() {
  CHECK(cudaMalloc(&counter, sizeof(int)));
  add<<<1, 1>>>(counter, 0);  // loads the module before any capture
  CHECK(cudaDeviceSynchronize());
  fork_and_join();
  refused_calls();
  threads();
  CHECK(cudaFree(counter));
  return finish("capture");
}
