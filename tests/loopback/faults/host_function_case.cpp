// SPDX-License-Identifier: Apache-2.0
// Run on fault_driver with KVGPU_FAULT=cuLaunchKernel:2:2:200: what follows the second launch is
// sent before that has failed.
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "../cases/support.h"

namespace {

using namespace std::chrono_literals;

std::atomic<int> n_run{0}, n_called{0};
std::atomic<CUresult> status_seen{CUDA_SUCCESS};

void count_run(void*) { ++n_run; }
void count_call(CUstream, CUresult status, void*) {
  status_seen = status;
  ++n_called;
}

CUgraphExec graph_with_host_node(CUstream stream) {
  CUgraph graph;
  CUgraphExec exec;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU(cuLaunchHostFunc(stream, count_run, nullptr));
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphDestroy(graph));
  return exec;
}

// Of all threads of the process: how often one of them went to sleep.
long sleeps_in_a_second() {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(1s);
  getrusage(RUSAGE_SELF, &after);
  return after.ru_nvcsw - before.ru_nvcsw;
}

}  // namespace

TEST_CASE("skipped functions: nobody waits for what was skipped after an error") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Ints data(1);
  CUgraphExec exec = graph_with_host_node(stream);
  add_one(gpu, data, stream);
  CU(cuStreamSynchronize(stream));
  add_one(gpu, data, stream);  // fails late
  CU(cuLaunchHostFunc(stream, count_run, nullptr));
  CU(cuStreamAddCallback(stream, count_call, nullptr, 0));
  CU(cuGraphLaunch(exec, stream));
  CU_IS(cuStreamSynchronize(stream), CUDA_ERROR_OUT_OF_MEMORY);
  for (int i = 0; i < 200 && n_called == 0; ++i) std::this_thread::sleep_for(10ms);
  CHECK(n_called == 1);
  CU_IS(status_seen, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(n_run == 0);
  const long sleeps = sleeps_in_a_second();
  std::printf("figure: %ld sleeps in a second of doing nothing\n", sleeps);
  CHECK(sleeps < 100);
  CU(cuLaunchHostFunc(stream, count_run, nullptr));
  CU(cuGraphLaunch(exec, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(n_run == 2);
}
