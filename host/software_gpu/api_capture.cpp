// SPDX-License-Identifier: Apache-2.0
// Stream capture.
#include <cstring>

#include "api.h"

namespace software_gpu {

static CUstreamCaptureMode& thread_capture_mode() {
  static thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

CUresult check_capture_safe(Context& context) {
  const CUstreamCaptureMode mode = thread_capture_mode();
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  std::lock_guard lock(context.order_mutex);
  for (const auto& capture : context.captures) {
    const bool mine = capture->thread == std::this_thread::get_id() &&
                      capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global =
        mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !global) continue;
    capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

}  // namespace software_gpu

using namespace software_gpu;

namespace {

std::atomic<uint64_t> next_capture_id{1};

/// All streams that take part leave the capture. Under order_mutex.
bool leave_capture(Context& context, const std::shared_ptr<Capture>& capture,
                   const Stream& origin) {
  bool all_joined = true;
  std::vector<std::shared_ptr<Stream>> streams = context.streams.all();
  {
    std::lock_guard lock(context.per_thread_mutex);
    for (const auto& weak : context.per_thread_streams)
      if (auto stream = weak.lock()) streams.push_back(std::move(stream));
  }
  const std::vector<GraphNode*> front = origin.capture_front;
  for (const auto& stream : streams) {
    if (stream->capture != capture) continue;
    all_joined &= joined(stream->capture_front, front);
    stream->capture.reset();
    stream->capture_front.clear();
  }
  std::erase(context.captures, capture);
  capture->graph->is_captured = false;
  return all_joined;
}

/// Of a capture that has failed.
void drop_graph(const Capture& capture) {
  if (capture.is_new_graph) Driver::instance().graphs.take(capture.graph.get());
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** dependencies, size_t* n_dependencies) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  std::lock_guard lock(context->order_mutex);
  const auto& capture = stream->capture;
  *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (!capture || capture->invalid) return CUDA_SUCCESS;
  if (id) *id = capture->id;
  if (graph) *graph = reinterpret_cast<CUgraph>(capture->graph.get());
  if (dependencies)
    *dependencies = reinterpret_cast<const CUgraphNode*>(stream->capture_front.data());
  if (n_dependencies) *n_dependencies = stream->capture_front.size();
  return CUDA_SUCCESS;
}

/// Into `graph`; null: into a new one.
CUresult begin(CUstream handle, CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
               std::vector<GraphNode*> front) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  // Else compared as an int, which lets negative ones pass.
  if (static_cast<unsigned>(mode) > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream->is_legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(context->order_mutex);
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->is_new_graph = !graph;
  capture->graph = graph ? std::move(graph) : std::make_shared<Graph>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->id = next_capture_id.fetch_add(1);
  capture->graph->is_captured = true;
  if (capture->is_new_graph) Driver::instance().graphs.add(capture->graph);
  stream->capture = capture;
  stream->capture_front = std::move(front);
  context->captures.push_back(std::move(capture));
  return CUDA_SUCCESS;
}

/// Nodes of the graph that come by plain edges.
bool find_nodes(const Graph& graph, const CUgraphNode* handles, const CUgraphEdgeData* data,
                size_t n, std::vector<GraphNode*>* nodes) {
  constexpr CUgraphEdgeData PLAIN{};
  for (size_t i = 0; i < n; ++i) {
    auto* const node = reinterpret_cast<GraphNode*>(handles ? handles[i] : nullptr);
    if (!node || node->graph != &graph) return false;
    if (data && memcmp(&data[i], &PLAIN, sizeof PLAIN) != 0) return false;
    nodes->push_back(node);
  }
  return true;
}

}  // namespace

SOFTWARE_GPU_API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  RETURN_IF_FAILED(enter_without_context());
  return begin(handle, mode, nullptr, {});
}

SOFTWARE_GPU_API cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle,
                                             const CUgraphNode* dependencies,
                                             const CUgraphEdgeData* data, size_t n,
                                             CUstreamCaptureMode mode) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(graph_handle);
  std::vector<GraphNode*> front;
  if (!graph || graph->is_captured || !find_nodes(*graph, dependencies, data, n, &front))
    return CUDA_ERROR_INVALID_VALUE;
  return begin(handle, mode, graph, std::move(front));
}

SOFTWARE_GPU_API cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* dependencies,
                                                      const CUgraphEdgeData* data, size_t n,
                                                      unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  std::lock_guard lock(context->order_mutex);
  if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<GraphNode*> front;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
      !find_nodes(*stream->capture->graph, dependencies, data, n, &front))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->capture_front.clear();
  add_unique(&stream->capture_front, front);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  if (graph) *graph = nullptr;
  std::lock_guard lock(context->order_mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != std::this_thread::get_id()) {
    // As on an H200 (driver 580): the attempt ends the capture, and its graph is lost.
    capture->invalid = true;
    leave_capture(*context, capture, *stream);
    drop_graph(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  if (capture->origin != stream.get()) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  const bool all_joined = leave_capture(*context, capture, *stream);
  const CUresult result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                          : all_joined     ? CUDA_SUCCESS
                                           : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  if (result != CUDA_SUCCESS) {
    capture->invalid = true;
    drop_graph(*capture);
    return result;
  }
  if (graph)
    *graph = reinterpret_cast<CUgraph>(capture->graph.get());
  else
    drop_graph(*capture);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  std::lock_guard lock(context->order_mutex);
  if (!context->captures_in_the_way(*stream).empty()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status,
                                           cuuint64_t* id, CUgraph* graph,
                                           const CUgraphNode** dependencies,
                                           size_t* n_dependencies) {
  return capture_info(handle, status, id, graph, dependencies, n_dependencies);
}

SOFTWARE_GPU_API cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status,
                                           cuuint64_t* id, CUgraph* graph,
                                           const CUgraphNode** dependencies,
                                           const CUgraphEdgeData** edges, size_t* n_dependencies) {
  if (edges) *edges = nullptr;  // all edges are plain ones
  return capture_info(handle, status, id, graph, dependencies, n_dependencies);
}

SOFTWARE_GPU_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  RETURN_IF_FAILED(enter_without_context());
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_capture_mode());
  return CUDA_SUCCESS;
}
