// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "support.h"

namespace {

struct Note {
  std::atomic<int> calls{0};
  CUresult inside = CUDA_SUCCESS;
  const int* watched = nullptr;
  int seen = -1;
};

void note(void* user) {
  auto* const n = static_cast<Note*>(user);
  CUdeviceptr dptr;
  n->inside = cuMemAlloc(&dptr, 16);
  if (n->watched != nullptr) n->seen = *n->watched;
  ++n->calls;
}

}  // namespace

TEST_CASE("host_func: in stream order, sees the data, no CUDA inside; a callback, too") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Ints data(1, 5);
  int* pinned = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4, 0));
  Note first, second;
  first.watched = pinned;
  {
    Gate gate(gpu, stream);
    CU(cuMemcpyDtoHAsync(pinned, data.dptr, 4, stream));
    CU(cuLaunchHostFunc(stream, note, &first));
    add_one(gpu, data, stream);
    CU(cuStreamAddCallback(stream, [](CUstream, CUresult, void* user) { note(user); }, &second, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(first.calls == 0);
    gate.open();
    CU(cuStreamSynchronize(stream));
  }
  CHECK(first.calls == 1);
  CHECK(first.seen == 5);
  CU_IS(first.inside, CUDA_ERROR_NOT_PERMITTED);
  CHECK(second.calls == 1);
  CHECK(data.read()[0] == 6);
  // Another stream goes on while a host function runs.
  CUstream other;
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  std::atomic<bool> release{false};
  CU(cuLaunchHostFunc(
      stream,
      [](void* user) {
        while (!*static_cast<std::atomic<bool>*>(user)) std::this_thread::yield();
      },
      &release));
  add_one(gpu, data, other);
  CU(cuStreamSynchronize(other));
  CU_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  release = true;
  CU(cuStreamSynchronize(stream));
  CU(cuMemFreeHost(pinned));
}

TEST_CASE("graph: captured once, launched 100 times, with a host_func node") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Ints data(8);
  Note notes;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureStatus status;
  CU(cuStreamIsCapturing(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  add_one(gpu, data, stream);
  CU(cuLaunchHostFunc(stream, note, &notes));
  add_one(gpu, data, stream);
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuStreamIsCapturing(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(data.read() == std::vector<int>(8, 0));  // nothing ran while it was captured
  CUgraphExec exec;
  CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CU(cuGraphDestroy(graph));
  for (int i = 0; i < 100; ++i) CU(cuGraphLaunch(exec, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(data.read() == std::vector<int>(8, 200));
  CHECK(notes.calls == 100);
  CU(cuGraphExecDestroy(exec));
}

TEST_CASE("capture: fork and join by events pulls another stream in") {
  const Gpu gpu;
  CUstream a, b;
  CU(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  CUevent fork, join;
  CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  const Ints x(1), y(1);
  CU(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU(cuEventRecord(fork, a));
  CU(cuStreamWaitEvent(b, fork, 0));
  CUstreamCaptureStatus status;
  CU(cuStreamIsCapturing(b, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  add_one(gpu, x, a);
  add_one(gpu, y, b);
  CU(cuEventRecord(join, b));
  CU(cuStreamWaitEvent(a, join, 0));
  CUgraph graph;
  CU(cuStreamEndCapture(a, &graph));
  CU(cuStreamIsCapturing(b, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CUgraphExec exec;
  CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CU(cuGraphLaunch(exec, a));
  CU(cuStreamSynchronize(a));
  CHECK(x.read()[0] == 1);
  CHECK(y.read()[0] == 1);
}

TEST_CASE("capture: what is illegal is refused with CUDA's own errors") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUgraph graph = nullptr;

  CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  CU_IS(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);

  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_IS(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr dptr;
  CU_IS(cuMemAlloc(&dptr, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuMemAlloc(&dptr, 16));
  CU(cuMemFree(dptr));
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphDestroy(graph));

  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  std::thread([&] {
    cuCtxSetCurrent(gpu.context);
    CUdeviceptr other;
    CU(cuMemAlloc(&other, 16));  // only the capturing thread is restricted
    CU(cuMemFree(other));
    CUgraph wrong;
    CU_IS(cuStreamEndCapture(stream, &wrong), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("capture: the legacy stream may not be used beside a capturing blocking stream") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  const Ints data(1);
  CUgraph graph = nullptr;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU_IS(cuMemsetD32Async(data.dptr, 1, 1, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(data.read()[0] == 0);
}

TEST_CASE("fork: the child has no CUDA, the parent goes on") {
  const Gpu gpu;
  const Ints data(1);
  add_one(gpu, data, nullptr);
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr dptr;
    _exit(cuMemAlloc(&dptr, 16) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  add_one(gpu, data, nullptr);
  CHECK(data.read()[0] == 2);
}

TEST_CASE("error: a wild address in a kernel is sticky") {
  const Gpu gpu;
  CUdeviceptr wild = 0x10;
  launch(gpu.function("write_to"), nullptr, {&wild});
  CU_IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CU_IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr dptr;
  CU_IS(cuMemAlloc(&dptr, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
}
