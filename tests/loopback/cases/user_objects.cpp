// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <thread>

#include "graph_support.h"

namespace {

struct Object {
  explicit Object(unsigned n_references) {
    CU(cuUserObjectCreate(
        &handle, this, [](void* user) { ++static_cast<Object*>(user)->n_destroyed; }, n_references,
        CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  }
  // Nobody can wait for the destructor.
  bool goes() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (n_destroyed == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return n_destroyed == 1;
  }
  bool stays() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return n_destroyed == 0;
  }
  CUuserObject handle = nullptr;
  std::atomic<int> n_destroyed{0};
};

}  // namespace

TEST_CASE("user_object: goes with the last reference, whoever has it") {
  const Gpu gpu;
  Object plain(2), moved(1), shared(1);
  CU(cuUserObjectRetain(plain.handle, 2));
  CU(cuUserObjectRelease(plain.handle, 3));
  CHECK(plain.stays());
  CU(cuUserObjectRelease(plain.handle, 1));
  CHECK(plain.goes());

  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphRetainUserObject(graph, moved.handle, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CU(cuGraphRetainUserObject(graph, shared.handle, 3, 0));
  CU(cuUserObjectRelease(shared.handle, 1));
  CU(cuGraphReleaseUserObject(graph, shared.handle, 2));
  CHECK(shared.stays());
  CU(cuGraphReleaseUserObject(graph, shared.handle, 1));
  CHECK(shared.goes());
  CHECK(moved.stays());
  CU(cuGraphDestroy(graph));
  CHECK(moved.goes());
}

TEST_CASE("user_object: stays with clones, execs and launches of the graph") {
  const Gpu gpu;
  const Stream stream;
  const Ints data(1);
  Object object(1);
  CUgraph graph = nullptr, clone = nullptr;
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  add_one(gpu, data, stream.handle);
  CUstreamCaptureStatus status{};
  CU(cuStreamGetCaptureInfo(stream.handle, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  CU(cuGraphRetainUserObject(graph, object.handle, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CU(cuStreamEndCapture(stream.handle, &graph));
  CU(cuGraphClone(&clone, graph));
  CU(cuGraphDestroy(graph));
  CHECK(object.stays());
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, clone, 0));
  CU(cuGraphDestroy(clone));
  CHECK(object.stays());
  CU(cuGraphLaunch(exec, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(object.stays());
  CU(cuGraphLaunch(exec, stream.handle));
  CU(cuGraphExecDestroy(exec));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(object.goes());
  CHECK(data.read()[0] == 2);
}

TEST_CASE("user_object: a hundred, and what is wrong is refused") {
  const Gpu gpu;
  const auto nothing = [](void*) {};
  CUuserObject handle = nullptr;
  CU_IS(cuUserObjectCreate(&handle, nullptr, nothing, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuUserObjectCreate(nullptr, nullptr, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
        CUDA_ERROR_INVALID_VALUE);
  Object object(1);
  CU_IS(cuUserObjectRetain(object.handle, 0), CUDA_ERROR_INVALID_VALUE);
  const Graph graph;
  CU_IS(cuGraphRetainUserObject(graph.handle, object.handle, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK(object.stays());
  CU(cuUserObjectRelease(object.handle, 1));
  CHECK(object.goes());
  std::vector<std::unique_ptr<Object>> many;
  for (int i = 0; i < 100; ++i) {
    many.push_back(std::make_unique<Object>(1));
    CU(cuGraphRetainUserObject(graph.handle, many[i]->handle, 1, CU_GRAPH_USER_OBJECT_MOVE));
  }
  for (const auto& each : many) CU(cuGraphReleaseUserObject(graph.handle, each->handle, 1));
  for (const auto& each : many) CHECK(each->goes());
}
