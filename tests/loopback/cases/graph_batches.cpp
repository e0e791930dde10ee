// SPDX-License-Identifier: Apache-2.0
// Nodes that write values and wait for them.
#include "graph_support.h"

namespace {

using Operations = std::vector<CUstreamBatchMemOpParams>;

CUstreamBatchMemOpParams write(CUdeviceptr address, unsigned value) {
  CUstreamBatchMemOpParams p{};
  p.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  p.writeValue.address = address;
  p.writeValue.value = value;
  return p;
}

CUstreamBatchMemOpParams wait(CUdeviceptr address, unsigned value) {
  CUstreamBatchMemOpParams p{};
  p.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  p.waitValue.address = address;
  p.waitValue.value = value;
  p.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return p;
}

CUDA_BATCH_MEM_OP_NODE_PARAMS batch(const Gpu& gpu, Operations& operations) {
  return {gpu.context, static_cast<unsigned>(operations.size()), operations.data(), 0};
}

}  // namespace

TEST_CASE("graph: batches of memory operations, asked for and changed in the graph and its exec") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  const Ints data(4, 1);
  Operations first{write(data.dptr, 7), wait(data.dptr, 7), write(data.dptr + 4, 8)};
  CUDA_BATCH_MEM_OP_NODE_PARAMS p = batch(gpu, first);
  CUgraphNode node = nullptr;
  CU(cuGraphAddBatchMemOpNode(&node, graph.handle, nullptr, 0, &p));
  (void)graph.add_one(gpu, data, {node});
  CUgraphNodeType type{};
  CU(cuGraphNodeGetType(node, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  CUDA_BATCH_MEM_OP_NODE_PARAMS asked{};
  CU(cuGraphBatchMemOpNodeGetParams(node, &asked));
  REQUIRE(asked.count == 3);
  CHECK(asked.ctx == gpu.context);
  CHECK(asked.paramArray[0].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32);
  CHECK(asked.paramArray[2].writeValue.address == data.dptr + 4);
  CHECK(asked.paramArray[2].writeValue.value == 8);
  const auto launched = [&](CUgraphExec exec) {
    CU(cuGraphLaunch(exec, stream.handle));
    CU(cuStreamSynchronize(stream.handle));
    return data.read();
  };
  {
    const Exec exec(graph);
    CHECK(launched(exec.handle) == std::vector<int>{8, 9, 2, 2});
    // CUDA 13.0 cuda.h: an exec's addresses and values may change, not how many they are.
    const CUdeviceptr third_int = data.dptr + 8;
    Operations second{write(third_int, 40), wait(third_int, 40), write(third_int, 40)};
    p = batch(gpu, second);
    CU(cuGraphExecBatchMemOpNodeSetParams(exec.handle, node, &p));
    p.count = 1;
    CU_IS(cuGraphExecBatchMemOpNodeSetParams(exec.handle, node, &p), CUDA_ERROR_INVALID_VALUE);
    CHECK(launched(exec.handle) == std::vector<int>{9, 10, 41, 3});
  }
  Operations third{write(data.dptr + 12, 60)};
  p = batch(gpu, third);
  CU(cuGraphBatchMemOpNodeSetParams(node, &p));
  const Exec exec(graph);
  CHECK(launched(exec.handle) == std::vector<int>{10, 11, 42, 61});
  p.count = 0;
  CU(cuGraphBatchMemOpNodeSetParams(node, &p));
  CU(cuGraphBatchMemOpNodeGetParams(node, &asked));
  CHECK(asked.count == 0);
  const Exec without(graph);
  CHECK(launched(without.handle) == std::vector<int>{11, 12, 43, 62});
  CU(cuStreamBatchMemOp(stream.handle, 0, nullptr, 0));
  CHECK(launched(without.handle) == std::vector<int>{12, 13, 44, 63});
}

TEST_CASE("graph: a captured value is a node that can be asked for") {
  const Gpu gpu;
  const Stream stream;
  const Ints data(1);
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuStreamWriteValue32(stream.handle, data.dptr, 12, 0));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream.handle, &graph));
  CUgraphNode node = nullptr;
  size_t n = 1;
  CU(cuGraphGetNodes(graph, &node, &n));
  REQUIRE(n == 1);
  CUDA_BATCH_MEM_OP_NODE_PARAMS asked{};
  CU(cuGraphBatchMemOpNodeGetParams(node, &asked));
  REQUIRE(asked.count == 1);
  CHECK(asked.paramArray[0].writeValue.value == 12);
  CU(cuGraphDestroy(graph));
}
