// SPDX-License-Identifier: Apache-2.0
// Graphs while they are captured, and what they keep for the program.
#include <cstring>

#include "generated/handlers.gen.h"
#include "graph_nodes.h"
#include "kvgpu/calls.h"
#include "kvgpu/graph_calls.h"

namespace kvgpu::worker {

namespace {

struct Found {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;  // null: plain ones
  size_t n = 0;
};

CUresult find_capture(const DriverTable& driver, CUstream stream, Found* found) {
  Found& f = *found;
  return driver.has(driver.cuStreamGetCaptureInfo_v3)
             ? driver.cuStreamGetCaptureInfo_v3(stream, &f.status, nullptr, &f.graph, &f.nodes,
                                                &f.edges, &f.n)
             : driver.cuStreamGetCaptureInfo_v2(stream, &f.status, nullptr, &f.graph, &f.nodes,
                                                &f.n);
}

// What is left of a user object when its last reference is gone.
struct Destructor {
  wire::Handle object;
  uint64_t function;
};

void destroy(void* user) {
  const Destructor destructor = *static_cast<const Destructor*>(user);
  Session& session = Session::current();
  session.handles.remove(destructor.object);  // and what `user` points to
  (void)session.callbacks.post(session.events, destructor.function, CUDA_SUCCESS);
}

}  // namespace

CUresult stream_get_capture_info_v3(Session& session, const Task& task, ReplyWriter& reply) {
  wire::CaptureInfo body;
  if (!task.read(&body)) session.violation(task);
  const auto stream = session.handles.stream(body.stream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = session.enter(*stream->context)) return bad;
  Found found;
  if (const CUresult bad = find_capture(*session.driver, stream->raw, &found)) return bad;
  if (found.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    reply.put(wire::CaptureState{static_cast<uint32_t>(found.status), 0, 0, 0});
    return CUDA_SUCCESS;
  }
  wire::Handle graph = session.handles.handle_of(found.graph);
  if (graph == 0) {
    graph = body.graph;
    if (!session.handles.add(graph, found.graph, 0)) session.violation(task);
  }
  const uint64_t first = std::min<uint64_t>(body.first, found.n);
  const uint64_t n = std::min<uint64_t>(found.n - first, wire::MAX_GRAPH_EDGES);
  reply.put(wire::CaptureState{static_cast<uint32_t>(found.status), 0, found.n, n});
  for (uint64_t i = first; i < first + n; ++i) {
    wire::GraphEdge edge{session.handles.name_node(found.nodes[i], graph), 0, {}};
    if (edge.from == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (found.edges != nullptr) std::memcpy(edge.data, &found.edges[i], sizeof edge.data);
    reply.put(edge);
  }
  return CUDA_SUCCESS;
}

CUresult stream_update_capture_dependencies_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::CaptureDependencies body;
  if (!task.read(&body)) session.violation(task);
  const auto stream = session.handles.stream(body.stream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = session.enter(*stream->context)) return bad;
  Edges edges;
  const CUresult bad = read_edges(session, task, sizeof body, body.n, false, &edges);
  if (bad != CUDA_SUCCESS) return bad;
  const DriverTable& driver = *session.driver;
  if (edges.are_plain() && !driver.has(driver.cuStreamUpdateCaptureDependencies_v2)) {
    return driver.cuStreamUpdateCaptureDependencies(stream->raw, edges.from.data(), body.n,
                                                    body.flags);
  }
  return driver.cuStreamUpdateCaptureDependencies_v2(stream->raw, edges.from.data(),
                                                     edges.data.data(), body.n, body.flags);
}

CUresult stream_begin_capture_to_graph(Session& session, const Task& task, ReplyWriter&) {
  wire::CaptureToGraph body;
  if (!task.read(&body)) session.violation(task);
  const auto stream = session.handles.stream(body.stream);
  CUgraph graph;
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = session.enter(*stream)) return bad;
  Edges edges;
  const CUresult bad = read_edges(session, task, sizeof body, body.n, false, &edges);
  if (bad != CUDA_SUCCESS) return bad;
  const CUresult result = session.driver->cuStreamBeginCaptureToGraph(
      stream->raw, graph, edges.from.data(), edges.data.data(), body.n,
      CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result == CUDA_SUCCESS) stream->captures_to_graph = true;
  return result;
}

CUresult user_object_create(Session& session, const Task& task, ReplyWriter&) {
  wire::UserObjectCreate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  const auto destructor = std::make_shared<Destructor>(Destructor{body.object, body.function});
  CUuserObject object = nullptr;
  const CUresult result = session.driver->cuUserObjectCreate(&object, destructor.get(), &destroy,
                                                             body.n_references, body.flags);
  if (result == CUDA_SUCCESS && !session.handles.add(body.object, object, 0, destructor)) {
    session.violation(task);
  }
  return result;
}

}  // namespace kvgpu::worker
