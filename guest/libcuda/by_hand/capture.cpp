// SPDX-License-Identifier: Apache-2.0
#include "capture.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "enqueue.h"
#include "generated/api.gen.h"
#include "kvgpu/graph_calls.h"

namespace kvgpu::guest {

namespace {

std::mutex mutex;                                    // guards the map and Stream::capture changes
auto& captures = *new std::map<uint64_t, Capture*>;  // going on, by id
auto& idle_captures = *new std::vector<Capture*>;
std::atomic<uint64_t> n_captures{0};  // release by begin and end, acquire by any_capture()
std::atomic<uint64_t> next_capture_id{1};
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Does this capture forbid unsafe calls to the calling thread? (CUDA 13.0 cuda.h,
// cuThreadExchangeStreamCaptureMode)
bool forbids_here(const Capture& capture) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (pthread_equal(capture.origin_thread, pthread_self())) {
    return capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  }
  return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
         capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

// What the rules that are kept here say of a capture that ends now. On driver 580 a wrong thread
// ends it, too.
CUresult verdict_on(const Capture& capture) {
  if (capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      !pthread_equal(capture.origin_thread, pthread_self())) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  return capture.invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

Capture& begin(Stream& stream, CUstreamCaptureMode mode, const Graph& graph) {
  // From here on no progress number is put into the stream.
  const std::lock_guard mark_lock(stream.mark_mutex);
  const std::lock_guard lock(mutex);
  if (idle_captures.empty()) idle_captures.push_back(new Capture);
  Capture& capture = *idle_captures.back();
  idle_captures.pop_back();
  capture.id = next_capture_id++;
  capture.mode = mode;
  capture.origin_thread = pthread_self();
  capture.origin = &stream;
  capture.context = stream.context;
  capture.invalid = false;
  capture.graph = graph.handle;
  capture.implicit_sync = !(stream.flags & CU_STREAM_NON_BLOCKING);
  captures.emplace(capture.id, &capture);
  n_captures.fetch_add(1, std::memory_order_release);
  stream.capture.store(&capture, std::memory_order_release);
  return capture;
}

// Its streams of this context are ordinary ones again. Holding context.mutex.
void leave_capture(const Capture& capture, const Context& context) {
  for (Stream* member : context.streams) {
    if (member->capture.load() == &capture) {
      member->capture.store(nullptr, std::memory_order_release);
    }
  }
}

void retire(Capture& capture) {
  const std::lock_guard lock(mutex);
  if (captures.erase(capture.id) == 0) return;
  n_captures.fetch_sub(1, std::memory_order_release);
  {
    const std::lock_guard graph_lock(capture.mutex);
    forget(capture.graph);
    capture.graph = 0;
  }
  idle_captures.push_back(&capture);
}

// All its streams are ordinary ones again, those of other contexts, too.
void leave_capture(Capture& capture) {
  for (const wire::Handle handle : tables().contexts.handles()) {
    Context* const context = tables().contexts.find(handle);
    const std::lock_guard lock(context->mutex);
    leave_capture(capture, *context);
  }
  retire(capture);
}

}  // namespace

bool any_capture() { return n_captures.load(std::memory_order_acquire) != 0; }

void drop_captures(const Context& context) {
  std::vector<Capture*> going;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [id, capture] : captures) {
      if (capture->context == &context) going.push_back(capture);
    }
  }
  for (Capture* capture : going) {
    leave_capture(*capture, context);
    retire(*capture);
  }
}

CUresult unsafe_call_allowed() {
  if (!any_capture()) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex);
  CUresult result = CUDA_SUCCESS;
  for (const auto& [id, capture] : captures) {
    if (forbids_here(*capture)) {
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

CUresult enqueue_allowed(Stream& stream) {
  if (!any_capture()) [[likely]]
    return CUDA_SUCCESS;
  if (const Capture* own = stream.capture.load(std::memory_order_acquire)) {
    return own->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  }
  if (!stream.is_legacy()) return CUDA_SUCCESS;
  // The legacy stream would wait for the blocking stream that captures.
  const std::lock_guard lock(mutex);
  CUresult result = CUDA_SUCCESS;
  for (const auto& [id, capture] : captures) {
    if (capture->context == stream.context && capture->implicit_sync) {
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return result;
}

CUresult break_capture(Stream& stream, CUresult error) {
  if (Capture* capture = stream.capture.load()) capture->invalid = true;
  return error;
}

void join_capture(Stream& stream, uint64_t capture_id) {
  const std::lock_guard lock(mutex);
  const auto found = captures.find(capture_id);
  if (found == captures.end()) return;
  stream.capture.store(found->second, std::memory_order_release);
  if (!(stream.flags & CU_STREAM_NON_BLOCKING)) found->second->implicit_sync = true;
}

CUresult stream_begin_capture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  Stream& stream = enqueue.stream();
  if (stream.is_legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.capture.load() != nullptr) return break_capture(stream, CUDA_ERROR_ILLEGAL_STATE);
  Graph* const graph = tables().graphs.create();
  if (graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Capture& capture = begin(stream, mode, *graph);
  const wire::StreamRef body{stream.handle};
  const CUresult result = enqueue.call().sync(wire::Op::cuStreamBeginCapture_v2, body);
  if (result != CUDA_SUCCESS) leave_capture(capture);
  return result;
}

CUresult stream_begin_capture(CUstream hStream) {
  return stream_begin_capture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult stream_end_capture(CUstream hStream, CUgraph* phGraph) {
  if (phGraph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  CUresult error = CUDA_SUCCESS;
  Stream* const stream = find_stream(hStream, &error);
  if (stream == nullptr) return error;
  Capture* const capture = stream->capture.load();
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  *phGraph = nullptr;
  if (capture->origin != stream) return break_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  wire::Handle graph;
  {
    const std::lock_guard lock(capture->mutex);
    graph = std::exchange(capture->graph, 0);
  }
  const wire::EndCapture body{stream->handle, graph};
  CUresult result = call.sync(wire::Op::cuStreamEndCapture, body);
  const CUresult verdict = verdict_on(*capture);
  leave_capture(*capture);
  if (result == CUDA_SUCCESS && verdict != CUDA_SUCCESS) {
    // The worker's capture knew nothing of it: its graph is not to be had.
    (void)graph_destroy(from_wire<CUgraph>(graph));
    result = verdict;
  } else if (result != CUDA_SUCCESS) {
    forget(graph);
  } else {
    *phGraph = from_wire<CUgraph>(graph);
  }
  return result;
}

CUresult stream_is_capturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  if (captureStatus == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult error = CUDA_SUCCESS;
  Stream* const stream = find_stream(hStream, &error);
  if (stream == nullptr) return error;
  if (const CUresult bad = enqueue_allowed(*stream); bad == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return bad;
  const Capture* const capture = stream->capture.load(std::memory_order_acquire);
  *captureStatus = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
                   : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

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

CUresult thread_exchange_stream_capture_mode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
