// SPDX-License-Identifier: Apache-2.0
// Streams, events, host functions and capture.
#include "control.h"
#include "generated/handlers.gen.h"
#include "graph_nodes.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

void relay(void* guest_function, CUresult status) {
  Session& session = Session::current();
  session.callbacks.relay(session.events, reinterpret_cast<uint64_t>(guest_function), status);
}

CUresult stream_create(Session& session, const Task& task, ReplyWriter&) {
  wire::StreamCreate body;
  if (!task.read(&body)) session.violation(task);
  auto stream = std::make_shared<Stream>();
  stream->context = session.handles.context(body.context);
  stream->context_handle = body.context;
  stream->progress = session.progress_word(body.word);
  stream->flags = body.flags;
  stream->priority = body.priority;
  stream->is_blocking = (body.flags & CU_STREAM_NON_BLOCKING) == 0;
  if (stream->context == nullptr || stream->progress == nullptr) session.violation(task);
  if (!is_for_device(task, *stream->context)) session.violation(task);
  const CUresult result = session.enter(*stream);
  if (!session.handles.add(body.stream, stream)) session.violation(task);
  return result;
}

CUresult stream_destroy_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::StreamRef body;
  if (!task.read(&body)) session.violation(task);
  const auto stream = session.handles.stream(body.stream);
  if (stream == nullptr || stream->is_legacy()) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_for_device(task, *stream->context)) session.violation(task);
  session.handles.remove(body.stream);
  if (const CUresult bad = session.enter(*stream->context)) return bad;
  if (stream->raw == nullptr) return CUDA_SUCCESS;  // its creation has failed late
  stream->window.close(*session.driver);
  stream->close_graphs(*session.driver);
  stream->freed.close(*session.driver);
  return session.driver->cuStreamDestroy_v2(stream->raw);
}

CUresult stream_wait_event(Session& session, const Task& task, ReplyWriter&) {
  wire::WaitEvent body;
  if (!task.read(&body)) session.violation(task);
  CUevent event;
  if (!session.handles.get(body.event, &event)) return CUDA_ERROR_INVALID_HANDLE;
  return session.driver->cuStreamWaitEvent(task.stream->raw, event, body.flags);
}

CUresult event_create(Session& session, const Task& task, ReplyWriter&) {
  wire::EventCreate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUevent event;
  if (const CUresult bad = session.driver->cuEventCreate(&event, body.flags)) return bad;
  if (!session.handles.add(body.event, event, body.context)) session.violation(task);
  return CUDA_SUCCESS;
}

CUresult event_destroy_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::EventRef body;
  if (!task.read(&body)) session.violation(task);
  CUevent event;
  // The guest looks handles up: this one's creation has failed late.
  if (!session.handles.get(body.event, &event)) return CUDA_SUCCESS;
  session.handles.remove(body.event);
  session.control->shares.remove(ShareKind::EVENT, body.event);
  if (const CUresult bad = session.enter(body.context)) return bad;
  return session.driver->cuEventDestroy_v2(event);
}

CUresult event_record(Session& session, const Task& task, ReplyWriter&) {
  wire::RecordEvent body;
  if (!task.read(&body)) session.violation(task);
  CUevent event;
  if (!session.handles.get(body.event, &event)) return CUDA_ERROR_INVALID_HANDLE;
  if (body.flags == 0) return session.driver->cuEventRecord(event, task.stream->raw);
  return session.driver->cuEventRecordWithFlags(event, task.stream->raw, body.flags);
}

CUresult event_sync(Session& session, const Task& task, ReplyWriter&) {
  wire::EventRef body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUevent event;
  if (!session.handles.get(body.event, &event)) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = session.driver->cuEventSynchronize(event);
  session.output.deliver(session.events);
  return result;
}

CUresult event_query(Session& session, const Task& task, ReplyWriter&) {
  wire::EventRef body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUevent event;
  if (!session.handles.get(body.event, &event)) return CUDA_ERROR_INVALID_HANDLE;
  return session.driver->cuEventQuery(event);
}

CUresult event_elapsed_time_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::EventElapsed body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUevent start, end;
  if (!session.handles.get(body.start, &start) || !session.handles.get(body.end, &end)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  wire::Elapsed out{};
  const CUresult result = session.driver->has(session.driver->cuEventElapsedTime_v2)
                              ? session.driver->cuEventElapsedTime_v2(&out.ms, start, end)
                              : session.driver->cuEventElapsedTime(&out.ms, start, end);
  reply.put(out);
  return result;
}

CUresult launch_host_func(Session& session, const Task& task, ReplyWriter&) {
  wire::HostFunction body;
  if (!task.read(&body)) session.violation(task);
  return session.driver->cuLaunchHostFunc(
      task.stream->raw, [](void* user) { relay(user, CUDA_SUCCESS); },
      reinterpret_cast<void*>(body.function));
}

CUresult stream_add_callback(Session& session, const Task& task, ReplyWriter&) {
  wire::HostFunction body;
  if (!task.read(&body)) session.violation(task);
  return session.driver->cuStreamAddCallback(
      task.stream->raw, [](CUstream, CUresult status, void* user) { relay(user, status); },
      reinterpret_cast<void*>(body.function), 0);
}

CUresult stream_begin_capture_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::StreamRef body;
  if (!task.read(&body)) session.violation(task);
  const auto stream = session.handles.stream(body.stream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = session.enter(*stream)) return bad;
  stream->captures_to_graph = false;
  // Mode, origin thread and legality are the guest library's: its threads are not ours.
  return session.driver->cuStreamBeginCapture_v2(stream->raw, CU_STREAM_CAPTURE_MODE_RELAXED);
}

CUresult stream_end_capture(Session& session, const Task& task, ReplyWriter&) {
  wire::EndCapture body;
  if (!task.read(&body)) session.violation(task);
  const auto stream = session.handles.stream(body.stream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = session.enter(*stream->context)) return bad;
  CUgraph graph = nullptr;
  const CUresult result = session.driver->cuStreamEndCapture(stream->raw, &graph);
  if (result == CUDA_SUCCESS && session.handles.handle_of(graph) == body.graph) return result;
  if (stream->captures_to_graph) return result;  // which the guest keeps
  session.handles.remove(body.graph);            // named while it was captured, and gone
  if (result == CUDA_SUCCESS && !session.handles.add(body.graph, graph, 0)) session.violation(task);
  return result;
}

}  // namespace kvgpu::worker
