// SPDX-License-Identifier: Apache-2.0
// Stream capture.
#include "api.h"

namespace software_gpu {

static CUstreamCaptureMode& thread_capture_mode() {
  static thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

CUresult check_capture_safe(Context& context) {
  const CUstreamCaptureMode mode = thread_capture_mode();
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard lock(context.order_mutex);
  for (const auto& capture : context.captures) {
    const bool mine = capture->thread == std::this_thread::get_id() &&
                      capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global =
        mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !global) continue;
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
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

}  // namespace

SOFTWARE_GPU_API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream->is_legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(context->order_mutex);
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->graph = std::make_shared<Graph>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->id = next_capture_id.fetch_add(1);
  capture->graph->is_captured = true;
  Driver::instance().graphs.add(capture->graph);
  stream->capture = capture;
  stream->capture_front.clear();
  context->captures.push_back(std::move(capture));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  std::lock_guard lock(context->order_mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != std::this_thread::get_id()) {
    // As on an H200 (driver 580): the attempt ends the capture, and its graph is lost.
    capture->invalid = true;
    leave_capture(*context, capture, *stream);
    Driver::instance().graphs.take(capture->graph.get());
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
    Driver::instance().graphs.take(capture->graph.get());
    return result;
  }
  *graph = reinterpret_cast<CUgraph>(capture->graph.get());
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  std::lock_guard lock(context->order_mutex);
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
  if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_capture_mode());
  return CUDA_SUCCESS;
}
