// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate and free.
#include <thread>

#include "graph_support.h"

namespace {

constexpr size_t N_BYTES = 4 << 20;

CUDA_MEM_ALLOC_NODE_PARAMS on_device(CUdevice device, size_t n_bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS p{};
  p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  p.bytesize = n_bytes;
  return p;
}

uint64_t attribute(const Gpu& gpu, CUgraphMem_attribute id) {
  cuuint64_t value = 0;
  CU(cuDeviceGetGraphMemAttribute(gpu.device, id, &value));
  return value;
}

}  // namespace

TEST_CASE("graph_memory: allocated, used and freed by a graph's nodes") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  const Ints result(4);
  CUDA_MEM_ALLOC_NODE_PARAMS p = on_device(gpu.device, N_BYTES);
  CUgraphNode alloc = nullptr, free = nullptr;
  CU(cuGraphAddMemAllocNode(&alloc, graph.handle, nullptr, 0, &p));
  REQUIRE(p.dptr != 0);
  const CUgraphNode set = graph.set(p.dptr, 7, 4, {alloc});
  const CUgraphNode copy = graph.copy(linear(result.dptr, p.dptr, 16), {set});
  CU(cuGraphAddMemFreeNode(&free, graph.handle, &copy, 1, p.dptr));

  CUDA_MEM_ALLOC_NODE_PARAMS asked{};
  CU(cuGraphMemAllocNodeGetParams(alloc, &asked));
  CHECK(asked.dptr == p.dptr);
  CHECK(asked.bytesize == N_BYTES);
  CHECK(asked.poolProps.location.id == gpu.device);
  CUdeviceptr freed = 0;
  CU(cuGraphMemFreeNodeGetParams(free, &freed));
  CHECK(freed == p.dptr);
  CU_IS(cuGraphAddMemFreeNode(&free, graph.handle, &copy, 1, p.dptr), CUDA_ERROR_INVALID_VALUE);
  CUgraph clone = nullptr;
  CHECK(cuGraphClone(&clone, graph.handle) != CUDA_SUCCESS);

  const Exec exec(graph);
  for (int i = 0; i < 3; ++i) {
    CU(cuMemsetD32Async(result.dptr, 0, 4, stream.handle));
    CU(cuGraphLaunch(exec.handle, stream.handle));
    CU(cuStreamSynchronize(stream.handle));
    CHECK(result.read() == std::vector<int>(4, 7));
  }
  CHECK(attribute(gpu, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= N_BYTES);
}

TEST_CASE("graph_memory: an allocation is added before there is a context") {
  CU(cuInit(0));
  const Graph graph;
  CUDA_MEM_ALLOC_NODE_PARAMS p = on_device(0, N_BYTES);
  CUgraphNode alloc = nullptr;
  std::thread([&] {  // the cases before this one have left a context to the main one
    CU(cuGraphAddMemAllocNode(&alloc, graph.handle, nullptr, 0, &p));
  })
      .join();
  CHECK(p.dptr != 0);

  const Gpu gpu;
  const Stream stream;
  CUgraphNode free = nullptr;
  const CUgraphNode set = graph.set(p.dptr, 7, 4, {alloc});
  CU(cuGraphAddMemFreeNode(&free, graph.handle, &set, 1, p.dptr));
  const Exec exec(graph);
  CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
}

TEST_CASE("graph_memory: captured allocations, freed in the capture") {
  const Gpu gpu;
  const Stream stream;
  const Ints result(4);
  CUgraph graph = nullptr;
  CUdeviceptr dptr = 0;
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU(cuMemAllocAsync(&dptr, N_BYTES, stream.handle));
  REQUIRE(dptr != 0);
  CU(cuMemsetD32Async(dptr, 41, 4, stream.handle));
  int n = 4;
  launch(gpu.function("add_one"), stream.handle, {&dptr, &n}, 4);
  CU(cuMemcpyDtoDAsync(result.dptr, dptr, 16, stream.handle));
  CU(cuMemFreeAsync(dptr, stream.handle));
  CU(cuStreamEndCapture(stream.handle, &graph));
  size_t n_nodes = 0;
  CU(cuGraphGetNodes(graph, nullptr, &n_nodes));
  CHECK(n_nodes == 5);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) {
    CU(cuMemsetD32Async(result.dptr, 0, 4, stream.handle));
    CU(cuGraphLaunch(exec, stream.handle));
    CU(cuStreamSynchronize(stream.handle));
    CHECK(result.read() == std::vector<int>(4, 42));
  }
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
}

TEST_CASE("graph_memory: what a graph does not free is used and freed outside, or at the launch") {
  const Gpu gpu;
  const Stream stream;
  CUgraph graph = nullptr;
  CUdeviceptr dptr = 0;
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU(cuMemAllocAsync(&dptr, N_BYTES, stream.handle));
  CU(cuMemsetD32Async(dptr, 5, 4, stream.handle));
  CU(cuStreamEndCapture(stream.handle, &graph));
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) {
    CU(cuGraphLaunch(exec, stream.handle));
    int seen[4] = {};
    CU(cuMemcpyDtoHAsync(seen, dptr, 16, stream.handle));
    CU(cuStreamSynchronize(stream.handle));
    CHECK(seen[3] == 5);
    CHECK(attribute(gpu, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= N_BYTES);
    CHECK(cuGraphLaunch(exec, stream.handle) != CUDA_SUCCESS);  // it has not been freed
    if (i == 0) {
      CU(cuMemFreeAsync(dptr, stream.handle));
    } else {
      CU(cuMemFree(dptr));
    }
    CU(cuStreamSynchronize(stream.handle));
  }
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphInstantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  for (int i = 0; i < 3; ++i) CU(cuGraphLaunch(exec, stream.handle));
  CU(cuMemFreeAsync(dptr, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  cuuint64_t zero = 0;
  CU(cuDeviceSetGraphMemAttribute(gpu.device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
  CU(cuDeviceGraphMemTrim(gpu.device));
  CHECK(attribute(gpu, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) <=
        attribute(gpu, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
  CU_IS(cuDeviceGraphMemTrim(4711), CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("graph_memory: nodes of any type, made by cuGraphAddNode") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  CUgraphNodeParams p{};
  p.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  const CUDA_MEM_ALLOC_NODE_PARAMS alloc = on_device(gpu.device, N_BYTES);
  p.alloc.poolProps = alloc.poolProps;
  p.alloc.bytesize = alloc.bytesize;
  CUgraphNode first = nullptr, second = nullptr;
  CU(cuGraphAddNode(&first, graph.handle, nullptr, nullptr, 0, &p));
  const CUdeviceptr dptr = p.alloc.dptr;
  REQUIRE(dptr != 0);
  p = {};
  p.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  p.free.dptr = dptr;
  CU(cuGraphAddNode(&second, graph.handle, &first, nullptr, 1, &p));
  const Exec exec(graph);
  for (int i = 0; i < 2; ++i) CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
}
