// SPDX-License-Identifier: Apache-2.0
// Conditional nodes, and edges with data.
#include <cstring>
#include <string>

#include "graph_support.h"

// NVIDIA's device runtime, which brings cudaGraphSetConditional.
__asm__(
    ".section .rodata\n"
    "device_runtime_begin:\n"
    ".incbin \"" DEVICE_RUNTIME
    "\"\n"
    "device_runtime_end:\n"
    ".previous\n");
extern "C" char device_runtime_begin[], device_runtime_end[];

namespace {

// Counts down, and says whether there is more to count.
const char COUNT_DOWN[] = R"(
.version 7.0
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle_of_node, .param .b32 value_of_node);
.visible .entry count_down(.param .u64 handle, .param .u64 counter) {
  .reg .pred %p;
  .reg .b32 %r<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd0, [handle];
  ld.param.u64 %rd1, [counter];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.u32 %r0, [%rd2];
  add.s32 %r1, %r0, -1;
  st.global.u32 [%rd2], %r1;
  setp.gt.s32 %p, %r1, 0;
  selp.u32 %r2, 1, 0, %p;
  {
    .param .b64 p0;
    st.param.b64 [p0], %rd0;
    .param .b32 p1;
    st.param.b32 [p1], %r2;
    call.uni cudaGraphSetConditional, (p0, p1);
  }
  ret;
}
)";

class LinkedKernel {
 public:
  LinkedKernel(const std::string& source, const char* name) {
    CUlinkState state;
    CU(cuLinkCreate(0, nullptr, nullptr, &state));
    CU(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(source.c_str()), source.size() + 1,
                     name, 0, nullptr, nullptr));
    CU(cuLinkAddData(state, CU_JIT_INPUT_LIBRARY, device_runtime_begin,
                     static_cast<size_t>(device_runtime_end - device_runtime_begin), "cudadevrt", 0,
                     nullptr, nullptr));
    void* image = nullptr;
    CU(cuLinkComplete(state, &image, nullptr));
    CU(cuModuleLoadData(&module_, image));
    CU(cuLinkDestroy(state));
    CU(cuModuleGetFunction(&function, module_, name));
  }
  ~LinkedKernel() { cuModuleUnload(module_); }
  LinkedKernel(const LinkedKernel&) = delete;
  LinkedKernel& operator=(const LinkedKernel&) = delete;
  CUfunction function = nullptr;

 private:
  CUmodule module_ = nullptr;
};

CUgraphConditionalHandle condition(const Gpu& gpu, CUgraph graph, unsigned value) {
  CUgraphConditionalHandle handle = 0;
  CU(cuGraphConditionalHandleCreate(&handle, graph, gpu.context, value,
                                    CU_GRAPH_COND_ASSIGN_DEFAULT));
  return handle;
}

CUgraphNodeParams choice(const Gpu& gpu, CUgraphConditionalHandle handle,
                         CUgraphConditionalNodeType type, unsigned size) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = size;
  params.conditional.ctx = gpu.context;
  return params;
}

// A conditional node; its bodies.
std::vector<CUgraph> add_choice(const Gpu& gpu, CUgraph graph, CUgraphConditionalHandle handle,
                                CUgraphConditionalNodeType type, unsigned size) {
  CUgraphNodeParams params = choice(gpu, handle, type, size);
  CUgraphNode node = nullptr;
  CU(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  CUgraphNodeType found;
  CU(cuGraphNodeGetType(node, &found));
  CHECK(found == CU_GRAPH_NODE_TYPE_CONDITIONAL);
  REQUIRE(params.conditional.phGraph_out != nullptr);
  return {params.conditional.phGraph_out, params.conditional.phGraph_out + size};
}

void add_set(const Gpu& gpu, CUgraph graph, const Ints& data, unsigned value) {
  const CUDA_MEMSET_NODE_PARAMS params{data.dptr, 4, value, 4, static_cast<size_t>(data.n), 1};
  CUgraphNode node;
  CU(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &params, gpu.context));
}

void run(const Graph& graph) {
  const Stream stream;
  const Exec exec(graph);
  CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
}

}  // namespace

TEST_CASE("graph: a body that runs, or the other one, by the default value") {
  const Gpu gpu;
  for (const unsigned value : {0u, 1u, 7u}) {
    const Ints x(1);
    const Graph graph;
    const auto bodies = add_choice(gpu, graph.handle, condition(gpu, graph.handle, value),
                                   CU_GRAPH_COND_TYPE_IF, 2);
    add_set(gpu, bodies[0], x, 10);
    add_set(gpu, bodies[1], x, 20);
    run(graph);
    CHECK(x.read()[0] == (value ? 10 : 20));
  }
}

TEST_CASE("graph: one body of many, or none; a condition within a condition") {
  const Gpu gpu;
  for (const unsigned value : {0u, 2u, 3u}) {
    const Ints x(1, -1);
    const Graph graph;
    const auto outer =
        add_choice(gpu, graph.handle, condition(gpu, graph.handle, 1), CU_GRAPH_COND_TYPE_IF, 1);
    const auto bodies = add_choice(gpu, outer[0], condition(gpu, graph.handle, value),
                                   CU_GRAPH_COND_TYPE_SWITCH, 3);
    for (unsigned i = 0; i < 3; ++i) add_set(gpu, bodies[i], x, i);
    run(graph);
    CHECK(x.read()[0] == (value < 3 ? static_cast<int>(value) : -1));
  }
}

TEST_CASE("graph: a body runs again until a kernel says that it is enough") {
  const Gpu gpu;
  const LinkedKernel kernel(COUNT_DOWN, "count_down");
  const Stream stream;
  const Ints counter(1), n_runs(1);
  const Graph graph;
  CUgraphConditionalHandle handle = condition(gpu, graph.handle, 1);
  const auto body = add_choice(gpu, graph.handle, handle, CU_GRAPH_COND_TYPE_WHILE, 1);
  AddOne add(gpu, n_runs);
  CUgraphNode node;
  CU(cuGraphAddKernelNode(&node, body[0], nullptr, 0, &add.params));
  CUdeviceptr dptr = counter.dptr;
  void* arguments[] = {&handle, &dptr};
  CUDA_KERNEL_NODE_PARAMS count = add.params;
  count.func = kernel.function;
  count.kernelParams = arguments;
  CU(cuGraphAddKernelNode(&node, body[0], &node, 1, &count));
  const Exec exec(graph);
  for (const unsigned n : {5u, 3u}) {  // the default value is assigned at each launch
    CU(cuMemsetD32Async(counter.dptr, n, 1, stream.handle));
    CU(cuGraphLaunch(exec.handle, stream.handle));
  }
  CU(cuStreamSynchronize(stream.handle));
  CHECK(counter.read()[0] == 0);
  CHECK(n_runs.read()[0] == 8);
}

TEST_CASE("graph: what graphs with conditional nodes do not allow") {
  const Gpu gpu;
  const Ints x(1);
  const Graph graph, parent;
  const CUgraphConditionalHandle handle = condition(gpu, graph.handle, 1);
  CUgraphNode node;
  CUgraphNodeParams two_loops = choice(gpu, handle, CU_GRAPH_COND_TYPE_WHILE, 2);
  CHECK(cuGraphAddNode(&node, graph.handle, nullptr, nullptr, 0, &two_loops) != CUDA_SUCCESS);
  CUgraphNodeParams none = choice(gpu, handle, CU_GRAPH_COND_TYPE_SWITCH, 0);
  CHECK(cuGraphAddNode(&node, graph.handle, nullptr, nullptr, 0, &none) != CUDA_SUCCESS);
  const auto body = add_choice(gpu, graph.handle, handle, CU_GRAPH_COND_TYPE_IF, 1);
  add_set(gpu, body[0], x, 1);
  CUgraph clone = nullptr;
  CHECK(cuGraphClone(&clone, graph.handle) != CUDA_SUCCESS);
  CHECK(cuGraphAddChildGraphNode(&node, parent.handle, nullptr, 0, graph.handle) != CUDA_SUCCESS);
  {
    const Exec exec(graph);
    CUgraphExec second = nullptr;
    CHECK(cuGraphInstantiate(&second, graph.handle, 0) != CUDA_SUCCESS);
  }
  run(graph);
  CHECK(x.read()[0] == 1);
}

TEST_CASE("graph: edges with data are told, and refused where they cannot be") {
  const Gpu gpu;
  const Ints x(1), y(1);
  const Graph graph;
  const CUgraphNode first = graph.add_one(gpu, x, {}), second = graph.add_one(gpu, y, {});
  const CUgraphNode set = graph.set(x.dptr, 3, 1, {first});
  CUgraphEdgeData early{};
  early.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  early.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  CU(cuGraphAddDependencies(graph.handle, &first, &second, &early, 1));
  CUgraphEdgeData wrong = early;
  CHECK(cuGraphAddDependencies(graph.handle, &second, &set, &wrong, 1) != CUDA_SUCCESS);
  wrong = {};
  wrong.to_port = 1;
  CHECK(cuGraphAddDependencies(graph.handle, &second, &set, &wrong, 1) != CUDA_SUCCESS);

  CUgraphNode from[2], to[2];
  CUgraphEdgeData data[2];
  size_t n = 2;
  CU_IS(cuGraphGetEdges(graph.handle, from, to, nullptr, &n), CUDA_ERROR_LOSSY_QUERY);
  n = 2;
  CU(cuGraphGetEdges(graph.handle, from, to, data, &n));
  REQUIRE(n == 2);
  const int i = to[0] == second ? 0 : 1;
  CHECK(to[i] == second);
  CHECK(from[i] == first);
  CHECK(data[i].from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
  CHECK(data[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
  CHECK(data[1 - i].from_port == 0);
  run(graph);
  CHECK(x.read()[0] == 3);
  CHECK(y.read()[0] == 1);
  wrong = early;
  wrong.from_port = CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
  CU(cuGraphRemoveDependencies(graph.handle, &first, &second, &wrong, 1));  // of whatever data
  CU_IS(cuGraphRemoveDependencies(graph.handle, &first, &second, &early, 1),
        CUDA_ERROR_INVALID_VALUE);
}
