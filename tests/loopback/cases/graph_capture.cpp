// SPDX-License-Identifier: Apache-2.0
// What a program asks of a capture on its way, and what it changes there.
#include <algorithm>

#include "graph_support.h"

namespace {

struct Info {
  explicit Info(CUstream stream) {
    const CUgraphNode* nodes = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    size_t n = 0;
    CU(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes, &edges, &n));
    if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) dependencies.assign(nodes, nodes + n);
  }
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> dependencies;
};

size_t n_nodes(CUgraph graph) {
  size_t n = 0;
  CU(cuGraphGetNodes(graph, nullptr, &n));
  return n;
}

}  // namespace

TEST_CASE("graph: a capture tells its graph and what comes next depends on") {
  const Gpu gpu;
  const Stream a, b;
  const Ints x(1), y(1);
  CHECK(Info(a.handle).status == CU_STREAM_CAPTURE_STATUS_NONE);
  CUevent fork, join;
  CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  CU(cuStreamBeginCapture(a.handle, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  const Info begun(a.handle);
  CHECK(begun.status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(begun.dependencies.empty());
  CHECK(begun.graph != nullptr);
  CHECK(n_nodes(begun.graph) == 0);

  add_one(gpu, x, a.handle);
  const Info first(a.handle);
  REQUIRE(first.dependencies.size() == 1);
  CHECK(first.id == begun.id);
  CHECK(first.graph == begun.graph);
  CUgraphNodeType type{};
  CU(cuGraphNodeGetType(first.dependencies[0], &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_KERNEL);

  CU(cuEventRecord(fork, a.handle));
  CU(cuStreamWaitEvent(b.handle, fork, 0));
  const Info forked(b.handle);
  CHECK(forked.id == begun.id);
  CHECK(forked.graph == begun.graph);
  CHECK(forked.dependencies == first.dependencies);
  add_one(gpu, x, a.handle);
  add_one(gpu, y, b.handle);
  CU(cuEventRecord(join, b.handle));
  CU(cuStreamWaitEvent(a.handle, join, 0));
  CHECK(Info(a.handle).dependencies.size() == 2);
  CHECK(n_nodes(begun.graph) == 3);

  // Each of the outs may be missing.
  CUstreamCaptureStatus status{};
  CUgraph graph = nullptr;
  size_t n = 0;
  CU(cuStreamGetCaptureInfo(a.handle, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CU(cuStreamGetCaptureInfo(a.handle, &status, nullptr, nullptr, nullptr, nullptr, &n));
  CHECK(n == 2);
  CU_IS(cuStreamGetCaptureInfo(a.handle, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuStreamEndCapture(a.handle, &graph));
  CHECK(graph == begun.graph);
  CHECK(n_nodes(graph) == 3);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphLaunch(exec, a.handle));
  CU(cuStreamSynchronize(a.handle));
  CHECK(x.read()[0] == 2);
  CHECK(y.read()[0] == 1);
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuEventDestroy(fork));
  CU(cuEventDestroy(join));
}

TEST_CASE("graph: a node added by hand during a capture is in its graph, a host function, too") {
  const Gpu gpu;
  const Stream stream;
  const Ints data(1), other(1);
  int calls = 0;
  const CUDA_HOST_NODE_PARAMS count{[](void* user) { ++*static_cast<int*>(user); }, &calls};
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  add_one(gpu, data, stream.handle);
  CU(cuLaunchHostFunc(stream.handle, count.fn, count.userData));
  const Info info(stream.handle);
  CUgraphNode by_hand = nullptr, host = nullptr;
  const AddOne kernel(gpu, other);
  CU(cuGraphAddKernelNode(&by_hand, info.graph, info.dependencies.data(), info.dependencies.size(),
                          &kernel.params));
  CU(cuGraphAddHostNode(&host, info.graph, &by_hand, 1, &count));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream.handle, &graph));
  CHECK(n_nodes(graph) == 4);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphDestroy(graph));
  CU(cuGraphLaunch(exec, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(data.read()[0] == 1);
  CHECK(other.read()[0] == 1);
  CHECK(calls == 2);
  CU(cuGraphExecDestroy(exec));
}
