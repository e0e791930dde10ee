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

TEST_CASE("graph: what a capture's next node depends on is changed") {
  const Gpu gpu;
  const Stream stream;
  const Ints data(1), other(1);
  CU_IS(cuStreamUpdateCaptureDependencies(stream.handle, nullptr, nullptr, 0, 0),
        CUDA_ERROR_ILLEGAL_STATE);
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  add_one(gpu, data, stream.handle);
  const Info first(stream.handle);
  const AddOne kernel(gpu, other);
  CUgraphNode by_hand[2] = {};
  for (CUgraphNode& node : by_hand) {
    CU(cuGraphAddKernelNode(&node, first.graph, first.dependencies.data(), 1, &kernel.params));
  }
  CU(cuStreamUpdateCaptureDependencies(stream.handle, by_hand, nullptr, 1,
                                       CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CHECK(Info(stream.handle).dependencies == std::vector<CUgraphNode>{by_hand[0]});
  CU(cuStreamUpdateCaptureDependencies(stream.handle, by_hand + 1, nullptr, 1,
                                       CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  CHECK(Info(stream.handle).dependencies.size() == 2);
  add_one(gpu, data, stream.handle);
  const Info last(stream.handle);
  REQUIRE(last.dependencies.size() == 1);
  CUgraphNode before[2] = {};
  size_t n = 2;
  CU(cuGraphNodeGetDependencies(last.dependencies[0], before, nullptr, &n));
  CHECK(n == 2);
  CHECK(std::is_permutation(before, before + 2, by_hand));
  CU(cuStreamUpdateCaptureDependencies(stream.handle, nullptr, nullptr, 0,
                                       CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CHECK(Info(stream.handle).dependencies.empty());
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream.handle, &graph));
  CHECK(n_nodes(graph) == 4);
  CU(cuGraphDestroy(graph));
}

TEST_CASE("graph: a capture goes on in a graph that the program has begun") {
  const Gpu gpu;
  const Stream stream;
  const Ints data(4);
  const Graph graph;
  int calls = 0;
  const CUgraphNode set = graph.set(data.dptr, 40, 4, {});
  CU(cuStreamBeginCaptureToGraph(stream.handle, graph.handle, &set, nullptr, 1,
                                 CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK(Info(stream.handle).graph == graph.handle);
  CHECK(Info(stream.handle).dependencies == std::vector<CUgraphNode>{set});
  add_one(gpu, data, stream.handle);
  CU(cuLaunchHostFunc(stream.handle, [](void* user) { ++*static_cast<int*>(user); }, &calls));
  CUgraph captured = nullptr;
  CU(cuStreamEndCapture(stream.handle, &captured));
  CHECK(captured == graph.handle);
  CHECK(n_nodes(graph.handle) == 3);
  const Exec exec(graph);
  for (int i = 0; i < 2; ++i) CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(data.read() == std::vector<int>(4, 41));
  CHECK(calls == 2);
}
