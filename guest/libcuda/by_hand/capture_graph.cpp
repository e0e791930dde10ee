// SPDX-License-Identifier: Apache-2.0
// The graph of a capture on its way: asked for, and what comes next in it changed.
#include <algorithm>
#include <cstring>

#include "enqueue.h"
#include "generated/api.gen.h"
#include "kvgpu/graph_calls.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

struct CaptureInfoOut {
  CUstreamCaptureStatus* status;
  cuuint64_t* id;
  CUgraph* graph;
  const CUgraphNode** dependencies;
  const CUgraphEdgeData** edges;
  size_t* n;
};

// What the stream's next node depends on, kept with the stream for the program to read.
CUresult ask_dependencies(const Call& call, Stream& stream, wire::Handle graph, uint32_t* status) {
  struct {
    wire::CaptureState head;
    wire::GraphEdge list[wire::MAX_GRAPH_EDGES];
  } page;
  stream.dependencies.clear();
  stream.dependency_data.clear();
  do {
    const wire::CaptureInfo body{stream.handle, graph, stream.dependencies.size()};
    const CUresult bad = call.sync(wire::Op::cuStreamGetCaptureInfo_v3, body, &page);
    if (bad != CUDA_SUCCESS) return bad;
    *status = page.head.status;
    for (uint64_t i = 0; i < std::min(page.head.n, wire::MAX_GRAPH_EDGES); ++i) {
      stream.dependencies.push_back(from_wire<CUgraphNode>(page.list[i].from));
      std::memcpy(&stream.dependency_data.emplace_back(), page.list[i].data,
                  sizeof(CUgraphEdgeData));
    }
  } while (page.head.n != 0 && stream.dependencies.size() < page.head.n_all);
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, const CaptureInfoOut& out) {
  if (out.edges != nullptr && out.dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult lasting = Session::get().lasting_error()) return lasting;
  const CUresult result = stream_is_capturing(handle, out.status);
  if (result != CUDA_SUCCESS || *out.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return result;
  CUresult error = CUDA_SUCCESS;
  Stream* const stream = find_stream(handle, &error);
  Capture* const capture = stream != nullptr ? stream->capture.load() : nullptr;
  if (capture == nullptr) return error;
  if (out.id != nullptr) *out.id = capture->id;
  if (out.graph == nullptr && out.dependencies == nullptr && out.n == nullptr) return CUDA_SUCCESS;
  const Call call(CaptureRule::ALLOWED, stream->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  uint32_t status;
  if (const CUresult bad = ask_dependencies(call, *stream, capture->graph, &status)) return bad;
  *out.status = static_cast<CUstreamCaptureStatus>(status);
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (out.dependencies != nullptr && out.edges == nullptr) {
    constexpr CUgraphEdgeData PLAIN{};
    for (const CUgraphEdgeData& data : stream->dependency_data) {
      if (std::memcmp(&data, &PLAIN, sizeof data) != 0) return CUDA_ERROR_LOSSY_QUERY;
    }
  }
  if (out.graph != nullptr) *out.graph = from_wire<CUgraph>(capture->graph);
  if (out.dependencies != nullptr) *out.dependencies = stream->dependencies.data();
  if (out.edges != nullptr) *out.edges = stream->dependency_data.data();
  if (out.n != nullptr) *out.n = stream->dependencies.size();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult stream_get_capture_info(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                 cuuint64_t* id_out) {
  return capture_info(hStream, {captureStatus_out, id_out, nullptr, nullptr, nullptr, nullptr});
}

CUresult stream_get_capture_info_v2(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                    cuuint64_t* id_out, CUgraph* graph_out,
                                    const CUgraphNode** dependencies_out,
                                    size_t* numDependencies_out) {
  return capture_info(hStream, {captureStatus_out, id_out, graph_out, dependencies_out, nullptr,
                                numDependencies_out});
}

CUresult stream_get_capture_info_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                    cuuint64_t* id_out, CUgraph* graph_out,
                                    const CUgraphNode** dependencies_out,
                                    const CUgraphEdgeData** edgeData_out,
                                    size_t* numDependencies_out) {
  return capture_info(hStream, {captureStatus_out, id_out, graph_out, dependencies_out,
                                edgeData_out, numDependencies_out});
}

namespace {

std::vector<wire::GraphEdge> edges_from(const CUgraphNode* nodes, const CUgraphEdgeData* data,
                                        size_t n) {
  std::vector<wire::GraphEdge> edges(n);
  for (size_t i = 0; i < n; ++i) {
    edges[i].from = to_wire(nodes[i]);
    if (data != nullptr) std::memcpy(edges[i].data, &data[i], sizeof edges[i].data);
  }
  return edges;
}

Part part_of(const std::vector<wire::GraphEdge>& edges) {
  return {edges.data(), static_cast<uint32_t>(edges.size() * sizeof(wire::GraphEdge))};
}

}  // namespace

CUresult stream_update_capture_dependencies(CUstream hStream, CUgraphNode* dependencies,
                                            size_t numDependencies, unsigned int flags) {
  return stream_update_capture_dependencies_v2(hStream, dependencies, nullptr, numDependencies,
                                               flags);
}

CUresult stream_update_capture_dependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                               const CUgraphEdgeData* dependencyData,
                                               size_t numDependencies, unsigned int flags) {
  if (numDependencies != 0 && dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (enqueue.capture() == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  size_t at = 0;
  do {  // what does not fit into the first record is added
    const size_t n = std::min<size_t>(numDependencies - at, wire::MAX_GRAPH_EDGES);
    const auto edges =
        edges_from(dependencies + at, dependencyData == nullptr ? nullptr : dependencyData + at, n);
    const wire::CaptureDependencies body{
        enqueue.stream().handle, static_cast<uint32_t>(n),
        at == 0 ? flags : unsigned{CU_STREAM_ADD_CAPTURE_DEPENDENCIES}};
    const CUresult bad =
        enqueue.call().sync(wire::Op::cuStreamUpdateCaptureDependencies_v2, body, part_of(edges));
    if (bad != CUDA_SUCCESS) return bad;
    at += n;
  } while (at < numDependencies);
  return CUDA_SUCCESS;
}

CUresult stream_begin_capture_to_graph(CUstream hStream, CUgraph hGraph,
                                       const CUgraphNode* dependencies,
                                       const CUgraphEdgeData* dependencyData,
                                       size_t numDependencies, CUstreamCaptureMode mode) {
  const Graph* const graph = find(hGraph);
  if (graph == nullptr || (numDependencies != 0 && dependencies == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (numDependencies > wire::MAX_GRAPH_EDGES) {
    return static_cast<CUresult>(refuse_part("a capture that begins after more than 512 nodes"));
  }
  const auto edges = edges_from(dependencies, dependencyData, numDependencies);
  return begin_capture(hStream, mode, graph, [&](const Call& call, const Stream& stream) {
    const wire::CaptureToGraph body{stream.handle, graph->handle,
                                    static_cast<uint32_t>(numDependencies), 0};
    return call.sync(wire::Op::cuStreamBeginCaptureToGraph, body, part_of(edges));
  });
}

}  // namespace kvgpu::guest
