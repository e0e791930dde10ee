// SPDX-License-Identifier: Apache-2.0
// An event is a progress number of the stream it was recorded in, and a real event in the worker
// for times and for other streams.
#include "after_wait.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

struct Recorded {
  bool recorded;
  bool by_graph;
  uint32_t word;
  uint64_t number;
  uint64_t capture_id;
};

// A graph records an event somewhere on its way: only the driver knows when.
CUresult query_driver(const Call& call, const Event& event) {
  const wire::EventRef body{call.context(), event.handle};
  const CUresult result = call.sync(wire::Op::EVENT_QUERY, body);
  return result != CUDA_SUCCESS ? result : Session::get().finished();
}

Recorded state_of(Event& event) {
  const std::lock_guard lock(event.mutex);
  return {event.recorded, event.by_graph, event.word, event.number, event.capture_id};
}

}  // namespace

CUresult event_create(CUevent* phEvent, unsigned int Flags) {
  constexpr unsigned KNOWN =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (phEvent == nullptr || (Flags & ~KNOWN) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool is_shared = (Flags & CU_EVENT_INTERPROCESS) != 0;
  if (is_shared && (Flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  Event* const event = tables().events.create();
  if (event == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  event->context = &call.context_object();
  event->flags = Flags;
  const wire::EventCreate body{call.context(), event->handle, Flags, 0};
  if (is_shared) {
    event->share(Flags);
    if (const CUresult bad = call.sync(wire::Op::cuEventCreate, body)) {
      tables().events.remove(event->handle);
      return bad;
    }
    *phEvent = from_wire<CUevent>(event->handle);
    return CUDA_SUCCESS;
  }
  if (const CUresult bad = call.async(wire::Op::cuEventCreate, body)) return bad;
  *phEvent = from_wire<CUevent>(event->handle);
  return CUDA_SUCCESS;
}

CUresult event_destroy_v2(CUevent hEvent) {
  Event* const event = find(hEvent);
  if (event == nullptr) return missing(hEvent);
  const Call call(CaptureRule::ALLOWED, event->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const wire::EventRef body{call.context(), event->handle};
  tables().events.remove(event->handle);
  return call.async(wire::Op::cuEventDestroy_v2, body);
}

CUresult event_destroy(CUevent hEvent) { return event_destroy_v2(hEvent); }

CUresult event_record(CUevent hEvent, CUstream hStream) {
  return event_record_with_flags(hEvent, hStream, CU_EVENT_RECORD_DEFAULT);
}

CUresult event_record_with_flags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  if (flags > CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  Event* const event = find(hEvent);
  if (event == nullptr) return missing(hEvent);
  if (event->context != enqueue.stream().context) return CUDA_ERROR_INVALID_HANDLE;
  const wire::RecordEvent body{0, 0, event->handle, flags, 0};
  if (event->is_shared()) return enqueue.submit_and_ask(wire::Op::cuEventRecord, body);
  if (flags == CU_EVENT_RECORD_EXTERNAL && enqueue.capture() == nullptr) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  if (Capture* const capture = enqueue.capture()) {
    const CUresult result = enqueue.submit_and_ask(wire::Op::cuEventRecord, body);
    if (result != CUDA_SUCCESS) return result;
    if (flags == CU_EVENT_RECORD_EXTERNAL) {  // each launch of the graph records it
      capture->with_graph([event](Graph& graph) {
        graph.events.insert(event->handle);
        graph.recorded.insert(event->handle);
      });
      return CUDA_SUCCESS;
    }
    const std::lock_guard lock(event->mutex);
    event->recorded = true;
    event->by_graph = false;
    event->capture_id = capture->id;
    return CUDA_SUCCESS;
  }
  uint64_t number;
  // Behind nothing the event is over as soon as it is recorded: only its time is still to come.
  const CUresult bad = is_idle(enqueue.stream(), &number)
                           ? enqueue.submit_unnoticed(wire::Op::cuEventRecord, body)
                           : enqueue.submit_marked(wire::Op::cuEventRecord, body, &number);
  if (bad != CUDA_SUCCESS) return bad;
  const std::lock_guard lock(event->mutex);
  event->recorded = true;
  event->by_graph = false;
  event->capture_id = 0;
  event->word = enqueue.stream().word;
  event->number = number;
  return CUDA_SUCCESS;
}

CUresult event_query(CUevent hEvent) {
  Event* const event = find(hEvent);
  if (event == nullptr) return missing(hEvent);
  const Call call(CaptureRule::FORBIDDEN, event->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Recorded state = state_of(*event);
  if (!state.recorded) return CUDA_SUCCESS;
  if (state.capture_id != 0) return CUDA_ERROR_CAPTURED_EVENT;
  if (state.by_graph) return query_driver(call, *event);
  return Session::get().query(state.word, state.number);
}

CUresult event_synchronize(CUevent hEvent) {
  Event* const event = find(hEvent);
  if (event == nullptr) return missing(hEvent);
  const Call call(CaptureRule::FORBIDDEN, event->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Recorded state = state_of(*event);
  if (!state.recorded) return CUDA_SUCCESS;
  if (state.capture_id != 0) return CUDA_ERROR_CAPTURED_EVENT;
  if (state.by_graph) {
    const wire::EventRef body{call.context(), event->handle};
    const CUresult result = after_wait(call.sync(wire::Op::EVENT_SYNC, body));
    return result != CUDA_SUCCESS ? result : Session::get().finished();
  }
  return after_wait(Session::get().wait(state.word, state.number));
}

CUresult event_elapsed_time(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return event_elapsed_time_v2(pMilliseconds, hStart, hEnd);
}

CUresult event_elapsed_time_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  if (pMilliseconds == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // as driver 580
  Event* const events[] = {find(hStart), find(hEnd)};
  if (events[0] == nullptr) return missing(hStart);
  if (events[1] == nullptr) return missing(hEnd);
  for (Event* event : events) {
    if (event->flags & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  }
  const Call call(CaptureRule::ALLOWED, events[0]->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  // An event's number is reached before the driver records it: then the answer is due soon.
  for (;;) {
    bool by_graph = false;
    for (Event* event : events) {
      const Recorded state = state_of(*event);
      if (!state.recorded) return CUDA_ERROR_INVALID_HANDLE;
      if (state.capture_id != 0) return CUDA_ERROR_CAPTURED_EVENT;
      by_graph |= state.by_graph;
      if (state.by_graph) continue;  // the driver says whether it is there
      if (const CUresult bad = Session::get().query(state.word, state.number)) return bad;
    }
    wire::Elapsed out;
    const wire::EventElapsed body{call.context(), events[0]->handle, events[1]->handle};
    const CUresult result = call.sync(wire::Op::cuEventElapsedTime_v2, body, &out);
    if (result == CUDA_SUCCESS) *pMilliseconds = out.ms;
    if (result != CUDA_ERROR_NOT_READY || by_graph) return result;
  }
}

}  // namespace kvgpu::guest
