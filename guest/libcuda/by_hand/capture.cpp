// SPDX-License-Identifier: Apache-2.0
#include "capture.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "enqueue.h"
#include "generated/api.gen.h"

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

Capture& begin(Stream& stream, CUstreamCaptureMode mode, wire::Handle graph, bool is_new_graph) {
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
  capture.graph = graph;
  capture.is_new_graph = is_new_graph;
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
    if (capture.is_new_graph) forget(capture.graph);
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
      const bool is_its_own = capture->context == &context || capture->origin->owner == &context;
      if (is_its_own) going.push_back(capture);
    }
  }
  for (Capture* capture : going) {
    leave_capture(*capture, context.primary == nullptr ? context : *context.primary);
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

// The legacy stream would wait for the blocking streams that capture.
static std::vector<Capture*> captures_in_the_way(const Stream& stream) {
  std::vector<Capture*> found;
  if (!any_capture() || !stream.is_legacy()) return found;
  const std::lock_guard lock(mutex);
  for (const auto& [id, capture] : captures) {
    if (capture->origin->owner == stream.owner && capture->implicit_sync) found.push_back(capture);
  }
  return found;
}

CUresult enqueue_allowed(Stream& stream) {
  if (!any_capture()) [[likely]]
    return CUDA_SUCCESS;
  if (const Capture* own = stream.capture.load(std::memory_order_acquire)) {
    return own->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  }
  const std::vector<Capture*> broken = captures_in_the_way(stream);
  for (Capture* capture : broken) capture->invalid = true;
  return broken.empty() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult break_capture(Stream& stream, CUresult error) {
  if (Capture* capture = stream.capture.load()) capture->invalid = true;
  return error;
}

CUresult break_capture(uint64_t capture_id, CUresult error) {
  const std::lock_guard lock(mutex);
  const auto found = captures.find(capture_id);
  if (found != captures.end()) found->second->invalid = true;
  return error;
}

CUresult break_captures(Context& context) {
  if (!any_capture()) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  const std::lock_guard lock(home_of(context).mutex);
  for (Stream* stream : home_of(context).streams) {
    const bool is_its_own = stream->context == &context || stream->owner == &context;
    if (!is_its_own || stream->capture.load() == nullptr) continue;
    result = break_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return result;
}

void join_capture(Stream& stream, uint64_t capture_id) {
  const std::lock_guard lock(mutex);
  const auto found = captures.find(capture_id);
  if (found == captures.end()) return;
  stream.capture.store(found->second, std::memory_order_release);
  if (!(stream.flags & CU_STREAM_NON_BLOCKING)) found->second->implicit_sync = true;
}

CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode, const Graph* graph,
                       const std::function<CUresult(const Call&, const Stream&)>& ask) {
  // Else compared as an int, which lets negative ones pass.
  if (static_cast<unsigned>(mode) > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(handle);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  Stream& stream = enqueue.stream();
  if (stream.is_legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.capture.load() != nullptr) return break_capture(stream, CUDA_ERROR_ILLEGAL_STATE);
  const bool is_new = graph == nullptr;
  if (is_new) graph = tables().graphs.create();
  if (graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Capture& capture = begin(stream, mode, graph->handle, is_new);
  const CUresult result = ask(enqueue.call(), stream);
  if (result != CUDA_SUCCESS) leave_capture(capture);
  return result;
}

CUresult stream_begin_capture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return begin_capture(hStream, mode, nullptr, [](const Call& call, const Stream& stream) {
    return call.sync(wire::Op::cuStreamBeginCapture_v2, wire::StreamRef{stream.handle});
  });
}

CUresult stream_begin_capture(CUstream hStream) {
  return stream_begin_capture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult stream_end_capture(CUstream hStream, CUgraph* phGraph) {
  const Call call(CaptureRule::ALLOWED, context_of(hStream));
  if (call.status() != CUDA_SUCCESS) return call.status();
  CUresult error = CUDA_SUCCESS;
  Stream* const stream = find_stream(hStream, &error);
  if (stream == nullptr) return error;
  Capture* const capture = stream->capture.load();
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (phGraph != nullptr) *phGraph = nullptr;
  if (capture->origin != stream) return break_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  wire::Handle graph;
  const bool is_new_graph = capture->is_new_graph;
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
    if (is_new_graph) (void)graph_destroy(from_wire<CUgraph>(graph));
    result = verdict;
  } else if (result != CUDA_SUCCESS) {
    if (is_new_graph) forget(graph);
    if (verdict == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) result = verdict;
  } else if (phGraph != nullptr) {
    *phGraph = from_wire<CUgraph>(graph);
  } else if (is_new_graph) {
    (void)graph_destroy(from_wire<CUgraph>(graph));
  }
  return result;
}

CUresult stream_is_capturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  if (captureStatus == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult error = CUDA_SUCCESS;
  Stream* const stream = find_stream(hStream, &error);
  if (stream == nullptr) return error;
  // A question breaks nothing.
  if (!captures_in_the_way(*stream).empty()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const Capture* const capture = stream->capture.load(std::memory_order_acquire);
  *captureStatus = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
                   : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult thread_exchange_stream_capture_mode(CUstreamCaptureMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);  // driver 580 takes any number
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
