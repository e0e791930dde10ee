// SPDX-License-Identifier: Apache-2.0
// What nodes of graphs do: asked for, and changed in graphs and in execs.
#include <atomic>
#include <cstring>

#include "graph_support.h"

namespace {

void count(void* user) { ++*static_cast<std::atomic<int>*>(user); }

void run(const Exec& exec, const Stream& stream) {
  CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
}

}  // namespace

TEST_CASE("graph: a kernel node's parameters are told and changed, in the graph and in the exec") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  const Ints x(4), y(4), z(4);
  const CUgraphNode node = graph.add_one(gpu, x, {});
  CUDA_KERNEL_NODE_PARAMS found{};
  CU(cuGraphKernelNodeGetParams(node, &found));
  CHECK(found.func == gpu.function("add_one"));
  CHECK(found.gridDimX == 1);
  CHECK(found.blockDimX == 4);
  REQUIRE(found.kernelParams != nullptr);
  CHECK(*static_cast<CUdeviceptr*>(found.kernelParams[0]) == x.dptr);
  CHECK(*static_cast<int*>(found.kernelParams[1]) == 4);

  const Exec exec(graph);
  AddOne other(gpu, y);
  CU(cuGraphExecKernelNodeSetParams(exec.handle, node, &other.params));
  run(exec, stream);
  CHECK(x.read()[0] == 0);
  CHECK(y.read()[0] == 1);

  AddOne third(gpu, z);
  CU(cuGraphKernelNodeSetParams(node, &third.params));
  CU(cuGraphKernelNodeGetParams(node, &found));
  CHECK(*static_cast<CUdeviceptr*>(found.kernelParams[0]) == z.dptr);
  const Exec fresh(graph);
  run(fresh, stream);
  run(exec, stream);
  CHECK(z.read() == std::vector<int>(4, 1));
  CHECK(y.read() == std::vector<int>(4, 2));
}

TEST_CASE("graph: kernels of a capture are found, and changed in its exec") {
  const Gpu gpu;
  const Stream stream;
  const Ints x(1), y(1);
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_GLOBAL));
  add_one(gpu, x, stream.handle);
  CU(cuMemsetD32Async(y.dptr, 9, 1, stream.handle));
  CUgraph captured;
  CU(cuStreamEndCapture(stream.handle, &captured));
  CUgraphExec exec;
  CU(cuGraphInstantiate(&exec, captured, 0));
  CUgraphNode nodes[2];
  size_t n = 2;
  CU(cuGraphGetNodes(captured, nodes, &n));
  REQUIRE(n == 2);
  int kernels = 0;
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type;
    CU(cuGraphNodeGetType(node, &type));
    if (type != CU_GRAPH_NODE_TYPE_KERNEL) {
      CUDA_MEMSET_NODE_PARAMS set{};
      CU(cuGraphMemsetNodeGetParams(node, &set));
      CHECK(set.dst == y.dptr);
      CHECK(set.value == 9);
      CHECK(set.width * set.elementSize == 4);
      continue;
    }
    ++kernels;
    CUDA_KERNEL_NODE_PARAMS found{};
    CU(cuGraphKernelNodeGetParams(node, &found));
    REQUIRE(found.kernelParams != nullptr);
    CHECK(*static_cast<CUdeviceptr*>(found.kernelParams[0]) == x.dptr);
    AddOne other(gpu, y);
    found.kernelParams = other.arguments;
    CU(cuGraphExecKernelNodeSetParams(exec, node, &found));
  }
  CHECK(kernels == 1);
  CU(cuGraphLaunch(exec, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(x.read()[0] == 0);
  CHECK(y.read()[0] == 9);
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(captured));
}

TEST_CASE("graph: a kernel node with 16 KB of parameters") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  const Ints out(2);
  std::vector<int> many(4000, 1);
  many.back() = 77;
  CUdeviceptr dptr = out.dptr;
  void* arguments[] = {many.data(), &dptr};
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = gpu.function("many_params");
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = arguments;
  CUgraphNode node;
  CU(cuGraphAddKernelNode(&node, graph.handle, nullptr, 0, &params));
  CUDA_KERNEL_NODE_PARAMS found{};
  CU(cuGraphKernelNodeGetParams(node, &found));
  REQUIRE(found.kernelParams != nullptr);
  CHECK(std::memcmp(found.kernelParams[0], many.data(), 16000) == 0);
  CHECK(*static_cast<CUdeviceptr*>(found.kernelParams[1]) == dptr);
  const Exec exec(graph);
  run(exec, stream);
  CHECK(out.read() == std::vector<int>{3999, 77});
}

TEST_CASE("graph: copies and sets are told and changed, with rows") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  const Ints x(64), y(64);
  Pinned out(64);
  const CUDA_MEMSET_NODE_PARAMS rows{x.dptr, 32, 3, 4, 2, 8};  // two of each eight
  CUgraphNode set;
  CU(cuGraphAddMemsetNode(&set, graph.handle, nullptr, 0, &rows, gpu.context));
  CUDA_MEMSET_NODE_PARAMS told{};
  CU(cuGraphMemsetNodeGetParams(set, &told));
  CHECK(told.dst == x.dptr);
  CHECK(told.pitch == 32);
  CHECK(told.width == 2);
  CHECK(told.height == 8);
  CUDA_MEMCPY3D packed = linear(y.dptr, x.dptr, 8);
  packed.Height = packed.srcHeight = packed.dstHeight = 8;
  packed.srcPitch = 32;
  const CUgraphNode pack = graph.copy(packed, {set});
  const CUgraphNode down = graph.copy(linear(out.values, y.dptr, 256), {pack});
  CUDA_MEMCPY3D copy{};
  CU(cuGraphMemcpyNodeGetParams(down, &copy));
  CHECK(copy.dstHost == out.values);
  CHECK(copy.srcDevice == y.dptr);
  CHECK(copy.WidthInBytes == 256);
  const Exec exec(graph);
  run(exec, stream);
  CHECK(std::vector<int>(out.values, out.values + 16) == std::vector<int>(16, 3));
  CHECK(out.values[16] == 0);
  CHECK(x.read()[2] == 0);

  CUDA_MEMSET_NODE_PARAMS other = rows;
  other.value = 4;
  CU(cuGraphExecMemsetNodeSetParams(exec.handle, set, &other, gpu.context));
  run(exec, stream);
  CHECK(out.values[15] == 4);
  const CUDA_MEMCPY3D shorter = linear(out.values + 32, y.dptr, 64);
  CU(cuGraphMemcpyNodeSetParams(down, &shorter));
  CU(cuGraphMemsetNodeSetParams(set, &rows));
  const Exec fresh(graph);
  run(fresh, stream);
  CHECK(out.values[32] == 3);
  CHECK(out.values[15] == 4);
}

TEST_CASE("graph: a copy between arrays is not taken for one of linear memory") {
  const Gpu gpu;
  const Graph graph;
  const Ints data(4);
  CUDA_MEMCPY3D copy = linear(data.dptr, data.dptr, 8);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;  // of which there is none
  CUgraphNode node;
  CHECK(cuGraphAddMemcpyNode(&node, graph.handle, nullptr, 0, &copy, gpu.context) != CUDA_SUCCESS);
}

TEST_CASE("graph: a host node's function is told and changed") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  std::atomic<int> first{0}, second{0}, third{0};
  const CUgraphNode node = graph.host(count, &first, {});
  CUDA_HOST_NODE_PARAMS told{};
  CU(cuGraphHostNodeGetParams(node, &told));
  CHECK((told.fn == count));
  CHECK(told.userData == &first);
  const Exec exec(graph);
  const CUDA_HOST_NODE_PARAMS other{count, &second};
  CU(cuGraphExecHostNodeSetParams(exec.handle, node, &other));
  run(exec, stream);
  CHECK((first == 0 && second == 1));
  const CUDA_HOST_NODE_PARAMS last{count, &third};
  CU(cuGraphHostNodeSetParams(node, &last));
  CU(cuGraphHostNodeGetParams(node, &told));
  CHECK(told.userData == &third);
  const Exec fresh(graph);
  run(fresh, stream);
  run(exec, stream);
  CHECK((first == 0 && second == 2 && third == 1));
}

TEST_CASE("graph: an exec takes what another graph of its form says") {
  const Gpu gpu;
  const Stream stream;
  const Ints x(4);
  std::atomic<int> before{0}, after{0};
  const Graph first, second, other_form;
  (void)first.host(count, &before, {first.set(x.dptr, 1, 4, {})});
  (void)second.host(count, &after, {second.set(x.dptr, 2, 4, {})});
  (void)other_form.set(x.dptr, 3, 4, {});
  const Exec exec(first);
  run(exec, stream);
  CUgraphExecUpdateResultInfo info{};
  CU(cuGraphExecUpdate(exec.handle, second.handle, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  run(exec, stream);
  CHECK(x.read()[3] == 2);
  CHECK((before == 1 && after == 1));
  CU_IS(cuGraphExecUpdate(exec.handle, other_form.handle, &info),
        CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result != CU_GRAPH_EXEC_UPDATE_SUCCESS);
  run(exec, stream);
  CHECK(x.read()[3] == 2);
  CHECK((before == 1 && after == 2));
}

TEST_CASE("graph: nodes of an exec are switched off and on") {
  const Gpu gpu;
  const Stream stream;
  const Ints x(1);
  const Graph graph;
  const CUgraphNode kernel = graph.add_one(gpu, x, {});
  const CUgraphNode twice = graph.add_one(gpu, x, {kernel});
  const Exec exec(graph);
  unsigned enabled = 7;
  CU(cuGraphNodeGetEnabled(exec.handle, twice, &enabled));
  CHECK(enabled == 1);
  CU(cuGraphNodeSetEnabled(exec.handle, twice, 0));
  CU(cuGraphNodeGetEnabled(exec.handle, twice, &enabled));
  CHECK(enabled == 0);
  run(exec, stream);
  CHECK(x.read()[0] == 1);
  CU(cuGraphNodeSetEnabled(exec.handle, twice, 1));
  run(exec, stream);
  CHECK(x.read()[0] == 3);
}

TEST_CASE("graph: attributes of kernel nodes") {
  const Gpu gpu;
  const Stream stream;
  const Ints x(1);
  const Graph graph;
  const CUgraphNode one = graph.add_one(gpu, x, {});
  const CUgraphNode other = graph.add_one(gpu, x, {one});
  CUkernelNodeAttrValue value{};
  value.cooperative = 1;
  CU(cuGraphKernelNodeSetAttribute(one, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
  CU(cuGraphKernelNodeCopyAttributes(other, one));
  value.cooperative = 0;
  CU(cuGraphKernelNodeGetAttribute(other, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
  CHECK(value.cooperative == 1);
  const Exec exec(graph);
  run(exec, stream);
  CHECK(x.read()[0] == 2);
}

TEST_CASE("graph: the general form of nodes, and instantiation with parameters") {
  const Gpu gpu;
  const Stream stream;
  const Ints x(4);
  const Graph graph;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset = {x.dptr, 16, 6, 4, 4, 1, gpu.context};
  CUgraphNode set, kernel;
  CU(cuGraphAddNode(&set, graph.handle, nullptr, nullptr, 0, &params));
  AddOne add(gpu, x);
  CUgraphNodeParams work{};
  work.type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::memcpy(&work.kernel, &add.params, sizeof work.kernel);
  CU(cuGraphAddNode(&kernel, graph.handle, &set, nullptr, 1, &work));
  CUDA_GRAPH_INSTANTIATE_PARAMS how{};
  how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  how.hUploadStream = stream.handle;
  CUgraphExec exec;
  CU(cuGraphInstantiateWithParams(&exec, graph.handle, &how));
  CHECK(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
  CU(cuGraphUpload(exec, stream.handle));
  params.memset.value = 8;
  CU(cuGraphExecNodeSetParams(exec, set, &params));
  CU(cuGraphLaunch(exec, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(x.read()[3] == 9);
  CU(cuGraphExecDestroy(exec));
  CUgraphExec flagged;
  CU(cuGraphInstantiate(&flagged, graph.handle, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY));
  cuuint64_t flags = 7;
  CU(cuGraphExecGetFlags(flagged, &flags));
  CHECK(flags == 0);  // driver 580: that flag is not named
  CU(cuGraphExecDestroy(flagged));
}

TEST_CASE("graph: the graph of a child node is replaced in the exec") {
  const Gpu gpu;
  const Stream stream;
  const Ints x(4);
  const Graph parent, small, other;
  (void)small.set(x.dptr, 1, 4, {});
  (void)other.set(x.dptr, 2, 4, {});
  CUgraphNode child;
  CU(cuGraphAddChildGraphNode(&child, parent.handle, nullptr, 0, small.handle));
  const Exec exec(parent);
  CU(cuGraphExecChildGraphNodeSetParams(exec.handle, child, other.handle));
  run(exec, stream);
  CHECK(x.read()[0] == 2);
}
