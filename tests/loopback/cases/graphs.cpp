// SPDX-License-Identifier: Apache-2.0
// Graphs that a program builds itself: nodes, edges, children, clones.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "graph_support.h"

namespace {

using Nodes = std::vector<CUgraphNode>;

Nodes nodes_of(CUgraph graph) {
  size_t n = 0;
  CU(cuGraphGetNodes(graph, nullptr, &n));
  Nodes nodes(n);
  CU(cuGraphGetNodes(graph, nodes.data(), &n));
  REQUIRE(n == nodes.size());
  return nodes;
}

CUgraphNodeType type_of(CUgraphNode node) {
  CUgraphNodeType type{};
  CU(cuGraphNodeGetType(node, &type));
  return type;
}

bool has(const Nodes& nodes, CUgraphNode node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

}  // namespace

TEST_CASE("graph: copies, a set, kernels and a host function, built by hand and launched twice") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  const Ints data(8), other(8);
  Pinned in(8), out(8);
  for (int i = 0; i < 8; ++i) in.values[i] = i;
  const CUgraphNode up = graph.copy(linear(data.dptr, in.values, 32), {});
  const CUgraphNode set = graph.set(other.dptr, 40, 8, {});
  const CUgraphNode first = graph.add_one(gpu, data, {up});
  const CUgraphNode second = graph.add_one(gpu, data, {first});
  const CUgraphNode third = graph.add_one(gpu, other, {set});
  const CUgraphNode joined = graph.empty({second, third});
  const CUgraphNode across = graph.copy(linear(data.dptr + 16, other.dptr, 16), {joined});
  const CUgraphNode down = graph.copy(linear(out.values, data.dptr, 32), {across});
  struct Seen {
    const int* at;
    std::atomic<int> calls{0};
    int last = -1;
  } seen{out.values};
  (void)graph.host(
      [](void* user) {
        auto* const s = static_cast<Seen*>(user);
        s->last = s->at[7];
        ++s->calls;
      },
      &seen, {down});
  const Exec exec(graph);
  for (int launch = 1; launch <= 2; ++launch) {
    CU(cuGraphLaunch(exec.handle, stream.handle));
    CU(cuStreamSynchronize(stream.handle));
    CHECK(std::vector<int>(out.values, out.values + 8) ==
          std::vector<int>{2, 3, 4, 5, 41, 41, 41, 41});
    CHECK(seen.calls == launch);
    CHECK(seen.last == 41);
    for (int i = 0; i < 8; ++i) out.values[i] = 0;
  }
}

TEST_CASE("graph: nodes, types, roots and edges are told") {
  const Gpu gpu;
  const Graph graph;
  const Ints data(4);
  const CUgraphNode set = graph.set(data.dptr, 1, 4, {});
  const CUgraphNode kernel = graph.add_one(gpu, data, {set});
  const CUgraphNode end = graph.empty({set, kernel});
  const Nodes all = nodes_of(graph.handle);
  CHECK(all.size() == 3);
  CHECK((has(all, set) && has(all, kernel) && has(all, end)));
  CHECK(type_of(set) == CU_GRAPH_NODE_TYPE_MEMSET);
  CHECK(type_of(kernel) == CU_GRAPH_NODE_TYPE_KERNEL);
  CHECK(type_of(end) == CU_GRAPH_NODE_TYPE_EMPTY);

  Nodes few(5, end);
  size_t n = few.size();
  CU(cuGraphGetRootNodes(graph.handle, few.data(), &n));
  CHECK(n == 1);
  CHECK(few[0] == set);
  CHECK(few[4] == nullptr);

  size_t n_edges = 0;
  CU(cuGraphGetEdges(graph.handle, nullptr, nullptr, nullptr, &n_edges));
  CHECK(n_edges == 3);
  Nodes from(3), to(3);
  CU(cuGraphGetEdges(graph.handle, from.data(), to.data(), nullptr, &n_edges));
  CHECK(std::count(from.begin(), from.end(), set) == 2);
  CHECK(std::count(to.begin(), to.end(), end) == 2);

  n = 2;
  Nodes two(2);
  CU(cuGraphNodeGetDependencies(end, two.data(), nullptr, &n));
  CHECK(n == 2);
  CHECK((has(two, set) && has(two, kernel)));
  CUgraphEdgeData of_edges[2];
  CU_IS(cuGraphNodeGetDependencies(end, nullptr, of_edges, &n), CUDA_ERROR_INVALID_VALUE);
  n = 0;
  CU(cuGraphNodeGetDependentNodes(kernel, nullptr, nullptr, &n));
  CHECK(n == 1);

  CU(cuGraphRemoveDependencies(graph.handle, &set, &end, nullptr, 1));
  CU(cuGraphGetEdges(graph.handle, nullptr, nullptr, nullptr, &n_edges));
  CHECK(n_edges == 2);
  CU(cuGraphDestroyNode(end));
  CHECK(nodes_of(graph.handle).size() == 2);
  CU(cuGraphGetEdges(graph.handle, nullptr, nullptr, nullptr, &n_edges));
  CHECK(n_edges == 1);
}

TEST_CASE("graph: dependencies that are added order the work; a circle is refused") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  const Ints data(1);
  const CUgraphNode kernel = graph.add_one(gpu, data, {});
  const CUgraphNode set = graph.set(data.dptr, 10, 1, {});
  CU(cuGraphAddDependencies(graph.handle, &set, &kernel, nullptr, 1));
  const Exec exec(graph);
  CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(data.read()[0] == 11);
  const CUresult added = cuGraphAddDependencies(graph.handle, &kernel, &set, nullptr, 1);
  CUgraphExec circle = nullptr;
  const bool refused =
      added != CUDA_SUCCESS || cuGraphInstantiate(&circle, graph.handle, 0) != CUDA_SUCCESS;
  CHECK(refused);
}

TEST_CASE("graph: more nodes and edges than one message holds") {
  const Gpu gpu;
  const Graph graph;
  Nodes all;
  for (int i = 0; i < 1300; ++i) all.push_back(graph.empty({}));
  const Nodes before(all.begin(), all.end() - 1);
  const Nodes last(before.size(), all.back());
  CU(cuGraphAddDependencies(graph.handle, before.data(), last.data(), nullptr, before.size()));
  const CUgraphNode end = graph.empty(before);
  size_t n = 0;
  CU(cuGraphNodeGetDependencies(all.back(), nullptr, nullptr, &n));
  CHECK(n == 1299);
  CU(cuGraphNodeGetDependencies(end, nullptr, nullptr, &n));
  CHECK(n == 1299);
  const Nodes listed = nodes_of(graph.handle);
  CHECK(listed.size() == 1301);
  CHECK((has(listed, all.front()) && has(listed, all[700]) && has(listed, end)));
  CU(cuGraphGetEdges(graph.handle, nullptr, nullptr, nullptr, &n));
  CHECK(n == 2 * 1299);
}

TEST_CASE("graph: a child graph is a copy, which can be looked into") {
  const Gpu gpu;
  const Stream stream;
  const Ints data(1);
  const Graph parent;
  CUgraphNode child_node;
  {
    const Graph child;
    (void)child.add_one(gpu, data, {child.add_one(gpu, data, {})});
    CU(cuGraphAddChildGraphNode(&child_node, parent.handle, nullptr, 0, child.handle));
    (void)child.add_one(gpu, data, {});  // comes too late
  }
  CUgraph inside = nullptr, again = nullptr;
  CU(cuGraphChildGraphNodeGetGraph(child_node, &inside));
  CU(cuGraphChildGraphNodeGetGraph(child_node, &again));
  CHECK(inside == again);
  const Nodes inner = nodes_of(inside);
  REQUIRE(inner.size() == 2);
  CHECK(type_of(inner[0]) == CU_GRAPH_NODE_TYPE_KERNEL);
  CHECK(type_of(child_node) == CU_GRAPH_NODE_TYPE_GRAPH);
  const Exec exec(parent);
  CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(data.read()[0] == 2);
}

TEST_CASE("graph: a clone goes on when the original is gone, with its host functions") {
  const Gpu gpu;
  const Stream stream;
  const Ints data(1);
  std::atomic<int> calls{0};
  CUgraph clone = nullptr;
  {
    const Graph original;
    const CUgraphNode kernel = original.add_one(gpu, data, {});
    (void)original.host([](void* user) { ++*static_cast<std::atomic<int>*>(user); }, &calls,
                        {kernel});
    CU(cuGraphClone(&clone, original.handle));
    CUgraphNode found = nullptr;
    CU(cuGraphNodeFindInClone(&found, kernel, clone));
    CHECK(found != kernel);
    CHECK(has(nodes_of(clone), found));
    CHECK(type_of(found) == CU_GRAPH_NODE_TYPE_KERNEL);
  }
  CUgraphExec exec;
  CU(cuGraphInstantiate(&exec, clone, 0));
  CU(cuGraphDestroy(clone));
  CU(cuGraphLaunch(exec, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(data.read()[0] == 1);
  CHECK(calls == 1);
  CU(cuGraphExecDestroy(exec));
}

TEST_CASE("graph: an exec that is destroyed while it runs still calls its host functions") {
  const Gpu gpu;
  const Stream stream;
  std::atomic<int> calls{0};
  {
    Gate gate(gpu, stream.handle);
    {
      const Graph graph;
      (void)graph.host([](void* user) { ++*static_cast<std::atomic<int>*>(user); }, &calls, {});
      const Exec exec(graph);
      for (int i = 0; i < 20; ++i) CU(cuGraphLaunch(exec.handle, stream.handle));
    }
    gate.open();
    CU(cuStreamSynchronize(stream.handle));
  }
  CHECK(calls == 20);
}

TEST_CASE("graph: captured work and a child with a host function, launched again and again") {
  const Gpu gpu;
  const Stream stream;
  const Ints data(1);
  std::atomic<int> calls{0};
  const Graph inner;
  (void)inner.host([](void* user) { ++*static_cast<std::atomic<int>*>(user); }, &calls,
                   {inner.add_one(gpu, data, {})});
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_GLOBAL));
  add_one(gpu, data, stream.handle);
  CUgraph captured;
  CU(cuStreamEndCapture(stream.handle, &captured));
  REQUIRE(nodes_of(captured).size() == 1);
  const Graph outer;
  CUgraphNode first, second;
  CU(cuGraphAddChildGraphNode(&first, outer.handle, nullptr, 0, captured));
  CU(cuGraphAddChildGraphNode(&second, outer.handle, &first, 1, inner.handle));
  CU(cuGraphDestroy(captured));
  const Exec exec(outer);
  for (int i = 0; i < 10; ++i) CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(data.read()[0] == 20);
  CHECK(calls == 10);
}

TEST_CASE("graph: event nodes record and wait") {
  const Gpu gpu;
  const Stream a, b;
  const Ints x(1), y(1);
  CUevent event;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const Graph records;
  CUgraphNode set = records.set(x.dptr, 5, 1, {}), record, got;
  CU(cuGraphAddEventRecordNode(&record, records.handle, &set, 1, event));
  CUevent named = nullptr;
  CU(cuGraphEventRecordNodeGetEvent(record, &named));
  CHECK(named == event);
  const Graph waits;
  CU(cuGraphAddEventWaitNode(&got, waits.handle, nullptr, 0, event));
  CU(cuGraphEventWaitNodeGetEvent(got, &named));
  CHECK(named == event);
  (void)waits.copy(linear(y.dptr, x.dptr, 4), {got});
  const Exec first(records), second(waits);
  // What they need is loaded before the gate closes.
  CU(cuGraphLaunch(first.handle, a.handle));
  CU(cuGraphLaunch(second.handle, b.handle));
  CU(cuCtxSynchronize());
  CHECK(y.read()[0] == 5);
  CU(cuMemsetD32(y.dptr, 0, 1));
  CU(cuCtxSynchronize());
  {
    Gate gate(gpu, a.handle);
    CU(cuGraphLaunch(first.handle, a.handle));
    CU_IS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CU(cuGraphLaunch(second.handle, b.handle));
    CU_IS(cuStreamQuery(b.handle), CUDA_ERROR_NOT_READY);
    gate.open();
    CU(cuEventSynchronize(event));
    CU(cuStreamSynchronize(b.handle));
  }
  CU_IS(cuEventQuery(event), CUDA_SUCCESS);
  CHECK(y.read()[0] == 5);
  CU(cuEventDestroy(event));
}

TEST_CASE("graph: pageable memory in a copy is right, or refused") {
  const Gpu gpu;
  const Stream stream;
  const Graph graph;
  const Ints data(4);
  std::vector<int> host{1, 2, 3, 4};
  const CUDA_MEMCPY3D copy = linear(data.dptr, host.data(), 16);
  CUgraphNode node;
  const CUresult result = cuGraphAddMemcpyNode(&node, graph.handle, nullptr, 0, &copy, gpu.context);
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    size_t n = 1;
    CU(cuGraphGetNodes(graph.handle, nullptr, &n));
    CHECK(n == 0);
    return;
  }
  REQUIRE(result == CUDA_SUCCESS);
  const Exec exec(graph);
  host = {5, 6, 7, 8};
  CU(cuGraphLaunch(exec.handle, stream.handle));
  CU(cuStreamSynchronize(stream.handle));
  CHECK(data.read() == host);
}

TEST_CASE("graph: is printed into the program's file") {
  const Gpu gpu;
  const Graph graph;
  const Ints data(4);
  const CUgraphNode set = graph.set(data.dptr, 1, 4, {});
  (void)graph.add_one(gpu, data, {set});
  char path[] = "/tmp/kvgpu-dot-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  CU(cuGraphDebugDotPrint(graph.handle, path, 0));
  const auto print = [&] {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string text = print();
  CHECK(text.find("digraph") != text.npos);
  CHECK(text.find("MEMSET") != text.npos);
  CHECK(text.find("->") != text.npos);
  // A text that comes in several pieces, over one that was there.
  CUgraphNode last = set;
  for (int i = 0; i < 20'000; ++i) last = graph.empty({last});
  CU(cuGraphDebugDotPrint(graph.handle, path, 0));
  CHECK(print().size() > (1 << 20));
  CHECK(print().rfind('}') + 4 > print().size());
  close(fd);
  unlink(path);
  CHECK(cuGraphDebugDotPrint(graph.handle, "/proc/no/such/folder", 0) != CUDA_SUCCESS);
}
