// SPDX-License-Identifier: Apache-2.0
// Events, and waiting for them.
#include <set>

#include "api.h"
#include "context_captures.h"
#include "shared_event.h"

using namespace software_gpu;

Operation software_gpu::stamp(const std::shared_ptr<Event::Record>& record,
                              std::shared_ptr<void> recording) {
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  operation.run = [record, recording = std::move(recording)](Context&) {
    record->time_ns.store(now_ns(), std::memory_order_release);
    return CUDA_SUCCESS;
  };
  return operation;
}

namespace {

/// Handles of events that were destroyed: driver 580 takes their context for gone.
class Ended {
 public:
  void add(CUevent handle) {
    std::lock_guard lock(mutex_);
    handles_.insert(handle);
  }
  bool has(CUevent handle) {
    std::lock_guard lock(mutex_);
    return handles_.contains(handle);
  }

 private:
  std::mutex mutex_;
  std::set<CUevent> handles_;
};
Ended& ended() {
  static Ended instance;
  return instance;
}

CUresult find_event(CUevent handle, std::shared_ptr<Event>* event) {
  *event = Driver::instance().events.find(handle);
  if (*event) return CUDA_SUCCESS;
  return ended().has(handle) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_HANDLE;
}

/// An event says itself in which context it is: none need be current.
CUresult enter_with(CUevent handle, Context** context, std::shared_ptr<Event>* event) {
  RETURN_IF_FAILED(current_context() ? enter(context) : enter_without_context());
  RETURN_IF_FAILED(find_event(handle, event));
  *context = &(*event)->context;
  return CUDA_SUCCESS;
}

CUresult record(CUevent handle, CUstream stream_handle, unsigned flags) {
  Context* context;
  std::shared_ptr<Event> event;
  std::shared_ptr<Stream> stream;
  const bool is_default =
      !stream_handle || stream_handle == CU_STREAM_LEGACY || stream_handle == CU_STREAM_PER_THREAD;
  if (is_default) {
    RETURN_IF_FAILED(enter(&context));
    RETURN_IF_FAILED(find_event(handle, &event));
  } else {
    RETURN_IF_FAILED(enter_with(handle, &context, &event));
  }
  RETURN_IF_FAILED(find_to_enqueue(*context, stream_handle, &stream));
  if (flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
  if (&event->context != context) return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard lock(context->order_mutex);
    if (stream->capture && event->shared) return CUDA_ERROR_NOT_SUPPORTED;
    if (!stream->capture && (flags & CU_EVENT_RECORD_EXTERNAL)) return CUDA_ERROR_ILLEGAL_STATE;
    if (stream->capture && (flags & CU_EVENT_RECORD_EXTERNAL) == 0) {
      if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      event->capture = stream->capture;
      event->capture_front = stream->capture_front;
      return CUDA_SUCCESS;
    }
  }
  std::shared_ptr<void> recording;
  if (event->shared) recording = event->shared->record();
  auto fresh = std::make_shared<Event::Record>();
  RETURN_IF_FAILED(context->submit(*stream, stamp(fresh, std::move(recording)), &fresh->point));
  std::lock_guard lock(context->order_mutex);
  event->capture.reset();
  event->capture_front.clear();
  event->last = std::move(fresh);
  return CUDA_SUCCESS;
}

/// The last recording, null if there is none; refuses an event that belongs to a capture.
CUresult last_record(Context& context, Event& event, std::shared_ptr<Event::Record>* record) {
  std::lock_guard lock(context.order_mutex);
  if (event.capture) {
    event.capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  *record = event.last;
  return CUDA_SUCCESS;
}

CUresult join_capture(Stream& stream, Event& event) {
  if (event.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.is_legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream.capture && stream.capture != event.capture) {
    stream.capture->invalid = event.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  stream.capture = event.capture;
  add_unique(&stream.capture_front, event.capture_front);
  return CUDA_SUCCESS;
}

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  Context* context;
  std::shared_ptr<Event> events[2];
  std::shared_ptr<Event::Record> records[2];
  if (!milliseconds) return CUDA_ERROR_INVALID_HANDLE;  // as driver 580
  RETURN_IF_FAILED(enter_with(start, &context, &events[0]));
  RETURN_IF_FAILED(find_event(end, &events[1]));
  for (int i = 0; i < 2; ++i) {
    if (events[i]->flags & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    RETURN_IF_FAILED(last_record(*context, *events[i], &records[i]));
    if (!records[i]) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!records[0]->point.reached() || !records[1]->point.reached()) return CUDA_ERROR_NOT_READY;
  const double difference = static_cast<double>(records[1]->time_ns.load()) -
                            static_cast<double>(records[0]->time_ns.load());
  *milliseconds = static_cast<float>(difference / 1e6);
  return CUDA_SUCCESS;
}

}  // namespace

SOFTWARE_GPU_API cuEventCreate(CUevent* handle, unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!handle || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  const bool interprocess = flags & CU_EVENT_INTERPROCESS;
  if (interprocess && !(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>(*context, flags);
  if (interprocess) {
    event->shared = SharedEvent::create(context->device.ordinal);
    if (!event->shared) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = reinterpret_cast<CUevent>(event.get());
  Driver::instance().events.add(std::move(event));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, 0); }
SOFTWARE_GPU_API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return record(event, stream, flags);
}

SOFTWARE_GPU_API cuEventQuery(CUevent handle) {
  Context* context;
  std::shared_ptr<Event> event;
  std::shared_ptr<Event::Record> last;
  RETURN_IF_FAILED(enter_with(handle, &context, &event));
  RETURN_IF_FAILED(last_record(*context, *event, &last));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (last && !last->point.reached()) return CUDA_ERROR_NOT_READY;
  if (event->shared && !event->shared->has_happened(event->shared->last_recording()))
    return CUDA_ERROR_NOT_READY;
  return context->sticky_error();
}

SOFTWARE_GPU_API cuEventSynchronize(CUevent handle) {
  Context* context;
  std::shared_ptr<Event> event;
  std::shared_ptr<Event::Record> last;
  RETURN_IF_FAILED(enter_with(handle, &context, &event));
  RETURN_IF_FAILED(last_record(*context, *event, &last));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (last) last->point.wait();
  if (event->shared) event->shared->wait(event->shared->last_recording());
  return finish_synchronization(*context);
}

SOFTWARE_GPU_API cuEventDestroy_v2(CUevent handle) {
  Context* context;
  std::shared_ptr<Event> event;
  RETURN_IF_FAILED(enter_with(handle, &context, &event));
  if (!Driver::instance().events.take(handle)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  ended().add(handle);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
#undef cuEventElapsedTime
SOFTWARE_GPU_API cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}

SOFTWARE_GPU_API cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Event> event;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_event(handle, &event));
  RETURN_IF_FAILED(find_stream(*context, stream_handle, &stream));
  if (flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Event::Record> last;
  {
    std::lock_guard lock(context->order_mutex);
    if (stream->capture && event->shared) return CUDA_ERROR_NOT_SUPPORTED;
    if (!stream->capture && (flags & CU_EVENT_WAIT_EXTERNAL)) return CUDA_ERROR_ILLEGAL_STATE;
    if (event->capture) return join_capture(*stream, *event);
    if (stream->capture && stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && (flags & CU_EVENT_WAIT_EXTERNAL) == 0) {
      stream->capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    last = event->last;
  }
  if (!last && !event->shared) return CUDA_SUCCESS;
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  operation.run = [point = last ? last->point : Point{}, shared = event->shared,
                   recording = event->shared ? event->shared->last_recording() : 0](Context&) {
    point.wait();
    if (shared) shared->wait(recording);
    return CUDA_SUCCESS;
  };
  return context->submit(*stream, std::move(operation));
}
