// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "after_wait.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "refuse.h"
#include "thread_object.h"

namespace kvgpu::guest {

namespace {

// Hidden streams behind CU_STREAM_PER_THREAD, one per thread and context; a thread that ends leaves
// them to the next one. By handle: a context that was reset has taken its streams along.
struct ThreadStreams {
  std::vector<std::pair<Context*, wire::Handle>> streams;
  ~ThreadStreams() {
    if (Session::get().is_forked_child())
      return;  // the lock may be held by a thread that is not here
    for (const auto& [context, handle] : streams) {
      const std::lock_guard lock(context->idle_mutex);
      context->idle_thread_streams.push_back(handle);
    }
  }
};

void forget_done(Context& context) {
  Session& session = Session::get();
  std::erase_if(context.leaving, [&](const Context::Leaving& gone) {
    return session.reached(gone.word, gone.last_number) ||
           session.is_lost(gone.word, gone.last_number);
  });
}

Stream* take_idle_stream(Context& context) {
  const std::lock_guard lock(context.idle_mutex);
  while (!context.idle_thread_streams.empty()) {
    Stream* const stream = tables().streams.find(context.idle_thread_streams.back());
    context.idle_thread_streams.pop_back();
    if (stream != nullptr) return stream;
  }
  return nullptr;
}

Stream* per_thread_stream(Context& context, CUresult* error) {
  for (const auto& [owner, handle] : of_this_thread<ThreadStreams>().streams) {
    Stream* const stream = owner == &context ? tables().streams.find(handle) : nullptr;
    if (stream != nullptr) return stream;
  }
  Stream* stream = take_idle_stream(context);
  if (stream == nullptr) stream = make_stream(context, CU_STREAM_DEFAULT, 0, error);
  if (stream != nullptr)
    of_this_thread<ThreadStreams>().streams.emplace_back(&context, stream->handle);
  return stream;
}

}  // namespace

Stream* find_stream(CUstream handle, CUresult* error, Context* itself) {
  const Context* const context = context_of(handle, itself);
  if (context == nullptr || !context->active.load(std::memory_order_acquire)) {
    *error = context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return nullptr;
  }
  return find_stream_there(handle, error, itself);
}

Stream* find_named_stream(CUstream handle, CUresult* error, Context* itself) {
  if (handle == CU_STREAM_PER_THREAD && itself->primary == nullptr) {
    return per_thread_stream(*itself, error);
  }
  Stream* const stream = tables().streams.find(to_wire(handle));
  if (stream == nullptr) *error = CUDA_ERROR_INVALID_HANDLE;
  if (stream == nullptr || !stream->owner->destroyed) return stream;
  *error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return nullptr;
}

Stream* make_stream(Context& owner, unsigned flags, int priority, CUresult* error) {
  Context& context = home_of(owner);
  Session& session = Session::get();
  uint64_t first_number = 0;
  const uint32_t word = session.allocate_word(&first_number);
  Stream* const stream = word < N_PROGRESS_WORDS ? tables().streams.create() : nullptr;
  if (stream == nullptr) {
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    return nullptr;
  }
  static std::atomic<uint64_t> next_id{16};
  stream->context = &context;
  stream->owner = &owner;
  stream->id = next_id++;
  stream->flags = flags;
  stream->priority = priority;
  stream->word = word;
  stream->issued = first_number;
  const wire::StreamCreate body{owner.handle, stream->handle, word, flags, priority, 0};
  *error = session.send(wire::Op::cuStreamCreate, context.device, part(body));
  if (*error != CUDA_SUCCESS) return nullptr;
  const std::lock_guard lock(context.mutex);
  context.streams.push_back(stream);
  return stream;
}

namespace {

enum class Deferred { RETURNED, LEFT };  // an error that the calling thread is still to be told of

CUresult mark(Stream& stream, uint64_t* number, Deferred error) {
  const std::lock_guard lock(stream.mark_mutex);
  Session& session = Session::get();
  *number = stream.issued.load(std::memory_order_relaxed);
  // A capture that has just begun would take the number into its graph.
  if (stream.capture.load(std::memory_order_acquire) != nullptr) return CUDA_SUCCESS;
  // A lost number says nothing any more: its error has been returned.
  const bool lost = session.is_lost(stream.word, *number);
  if (!stream.dirty.exchange(false, std::memory_order_acq_rel) && !lost) return CUDA_SUCCESS;
  ++*number;
  const wire::Mark body{stream.handle, *number};
  session.note_issued(stream.word, *number);
  const int device = stream.context->device;
  const CUresult result = error == Deferred::RETURNED
                              ? session.send_work(wire::Op::MARK, device, part(body))
                              : session.send(wire::Op::MARK, device, part(body));
  // A number that was not sent is never used again: it may be among the lost ones.
  stream.issued.store(*number, std::memory_order_release);
  if (result != CUDA_SUCCESS) stream.dirty.store(true, std::memory_order_release);
  return result;
}

}  // namespace

CUresult mark_stream(Stream& stream, uint64_t* number) {
  return mark(stream, number, Deferred::RETURNED);
}
CUresult mark_given_work(Stream& stream, uint64_t* number) {
  return mark(stream, number, Deferred::LEFT);
}

bool is_over(Stream& stream, uint64_t* number) {
  const std::lock_guard lock(
      stream.mark_mutex);  // `dirty` is false while a marked record is on its way
  *number = stream.issued.load(std::memory_order_relaxed);
  Session& session = Session::get();
  return !stream.dirty.load(std::memory_order_acquire) &&
         (session.reached(stream.word, *number) || session.is_lost(stream.word, *number));
}

namespace {

bool is_done(Stream& stream, uint64_t* number) {
  return is_over(stream, number) && !Session::get().is_lost(stream.word, *number);
}

}  // namespace

bool is_idle(Stream& stream, uint64_t* number) {
  if (!is_done(stream, number)) return false;
  if (stream.flags & CU_STREAM_NON_BLOCKING) return true;
  uint64_t of_other;
  Stream* const legacy = stream.owner->legacy;
  if (!stream.is_legacy()) return legacy == nullptr || is_done(*legacy, &of_other);
  // Holding the lock: another thread may destroy one of them.
  const std::lock_guard lock(stream.context->mutex);
  std::vector<StreamNumber> leaving;
  append_leaving(*stream.owner, Streams::BLOCKING, &leaving);
  return leaving.empty() && std::ranges::all_of(stream.context->streams, [&](Stream* other) {
           const bool is_before = other != &stream && !(other->flags & CU_STREAM_NON_BLOCKING) &&
                                  other->owner == stream.owner;
           return !is_before || is_done(*other, &of_other);
         });
}

void append_leaving(Context& context, Streams which, std::vector<StreamNumber>* numbers) {
  Context& home = home_of(context);
  forget_done(home);
  for (const auto& [word, last_number, is_blocking, owner] : home.leaving) {
    const bool is_wanted = which == Streams::ALL ? &context == &home || &context == owner
                                                 : is_blocking && &context == owner;
    if (is_wanted) numbers->push_back({word, last_number});
  }
}

CUresult mark_streams(Stream& stream, std::vector<StreamNumber>* numbers) {
  uint64_t number;
  if (const CUresult bad = mark_stream(stream, &number)) return bad;
  numbers->push_back({stream.word, number});
  if (!stream.is_legacy()) return CUDA_SUCCESS;
  // Holding the lock: another thread may destroy one of them.
  const std::lock_guard lock(stream.context->mutex);
  for (Stream* other : stream.context->streams) {
    if (other == &stream || (other->flags & CU_STREAM_NON_BLOCKING)) continue;
    if (other->owner != stream.owner) continue;
    if (const CUresult bad = mark_stream(*other, &number)) return bad;
    numbers->push_back({other->word, number});
  }
  append_leaving(*stream.owner, Streams::BLOCKING, numbers);
  return CUDA_SUCCESS;
}

CUresult synchronize_stream(Stream& stream) {
  std::vector<StreamNumber> numbers;
  if (const CUresult bad = mark_streams(stream, &numbers)) return bad;
  for (const StreamNumber& each : numbers) {
    if (const CUresult bad = Session::get().wait(each.word, each.number)) return bad;
  }
  return DriverWaits::output().settle();
}

CUresult stream_create(CUstream* phStream, unsigned int Flags) {
  return stream_create_with_priority(phStream, Flags, 0);
}

CUresult stream_create_with_priority(CUstream* phStream, unsigned int flags, int priority) {
  if (phStream == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  Context& context = call.context_object();
  CUresult error = CUDA_SUCCESS;
  if (find_stream(CU_STREAM_LEGACY, &error) == nullptr) return error;
  // CUDA 13.0 cuda.h: out of range priorities are clamped.
  priority = std::clamp(priority, context.info.greatest_priority, context.info.least_priority);
  Context& owner = *current_itself();
  if (owner.primary != nullptr) flags |= CU_STREAM_NON_BLOCKING;  // a green context has no others
  Stream* const stream = make_stream(owner, flags, priority, &error);
  if (stream == nullptr) return error;
  *phStream = from_wire<CUstream>(stream->handle);
  return CUDA_SUCCESS;
}

CUresult stream_destroy_v2(CUstream hStream) {
  const Call call(CaptureRule::ALLOWED, context_of(hStream));
  if (call.status() != CUDA_SUCCESS) return call.status();
  Stream* const stream = tables().streams.find(to_wire(hStream));
  if (stream == nullptr || stream->is_legacy()) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->owner->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (stream->capture.load() != nullptr)
    return break_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  // The word can serve another stream once this one has come to its end.
  uint64_t last;
  if (const CUresult bad = mark_stream(*stream, &last)) return bad;
  Context& context = *stream->context;
  {
    const std::lock_guard lock(context.mutex);
    std::erase(context.streams, stream);
    forget_done(context);
    const bool is_blocking = !(stream->flags & CU_STREAM_NON_BLOCKING);
    context.leaving.push_back({stream->word, last, is_blocking, stream->owner});
  }
  const uint32_t word = stream->word;
  const wire::StreamRef body{stream->handle};
  DriverWaits::leave(*stream, last);
  tables().streams.remove(stream->handle);
  const CUresult result =
      Session::get().send(wire::Op::cuStreamDestroy_v2, context.device, part(body));
  Session::get().free_word(word, last);
  return result;
}

// A query, a synchronisation: potentially unsafe calls.
static CUresult wait_allowed(Stream& stream) {
  if (const CUresult bad = enqueue_allowed(stream)) return bad;
  return unsafe_call_allowed();
}

CUresult stream_synchronize(CUstream hStream) {
  const Call call(CaptureRule::ALLOWED, context_of(hStream));
  if (call.status() != CUDA_SUCCESS) return call.status();
  CUresult error = CUDA_SUCCESS;
  Stream* const stream = find_stream(hStream, &error);
  if (stream == nullptr) return error;
  if (stream->capture.load() != nullptr) {
    return break_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  if (const CUresult bad = wait_allowed(*stream)) return bad;
  return after_wait(synchronize_stream(*stream));
}

CUresult stream_query(CUstream hStream) {
  const Call call(CaptureRule::ALLOWED, context_of(hStream));
  if (call.status() != CUDA_SUCCESS) return call.status();
  CUresult error = CUDA_SUCCESS;
  Stream* const stream = find_stream(hStream, &error);
  if (stream == nullptr) return error;
  if (stream->capture.load() != nullptr) {
    return break_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  if (const CUresult bad = wait_allowed(*stream)) return bad;
  std::vector<StreamNumber> numbers;
  if (const CUresult bad = mark_streams(*stream, &numbers)) return bad;
  for (const StreamNumber& each : numbers) {
    if (const CUresult bad = Session::get().query(each.word, each.number)) return bad;
  }
  return CUDA_SUCCESS;
}

CUresult stream_wait_event(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  Event* const event = find(hEvent);
  if (event == nullptr) return missing(hEvent);
  if ((Flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  const wire::WaitEvent body{0, 0, event->handle, Flags, 0};
  if (Flags == CU_EVENT_WAIT_EXTERNAL) {  // each launch of the graph waits for it
    Capture* const capture = enqueue.capture();
    if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    const CUresult result = enqueue.submit_and_ask(wire::Op::cuStreamWaitEvent, body);
    if (result != CUDA_SUCCESS) return result;
    capture->with_graph([event](Graph& graph) { graph.events.insert(event->handle); });
    return CUDA_SUCCESS;
  }
  uint64_t capture_id;
  {
    const std::lock_guard lock(event->mutex);
    if (!event->recorded) return CUDA_SUCCESS;  // CUDA 13.0 cuda.h: then the call does nothing
    capture_id = event->capture_id;
  }
  if (event->is_shared()) return enqueue.submit_and_ask(wire::Op::cuStreamWaitEvent, body);
  if (capture_id == 0) return enqueue.submit(wire::Op::cuStreamWaitEvent, body);
  // An event of a capture pulls the stream into it; the driver says whether it may.
  const CUresult result = enqueue.submit_and_ask(wire::Op::cuStreamWaitEvent, body);
  if (result == CUDA_SUCCESS) join_capture(enqueue.stream(), capture_id);
  return result;
}

// Driver 580 answers some questions about a stream only while it does not capture.
static Stream* find_uncaptured(CUstream handle, CUresult* error) {
  Stream* const stream = find_stream(handle, error);
  if (stream == nullptr || stream->capture.load() == nullptr) return stream;
  *error = break_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return nullptr;
}

Stream* find_unbroken(CUstream handle, CUresult* error) {
  Stream* const stream = find_stream(handle, error);
  const Capture* const capture = stream == nullptr ? nullptr : stream->capture.load();
  if (capture == nullptr || !capture->invalid) return stream;
  *error = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return nullptr;
}

CUresult stream_get_flags(CUstream hStream, unsigned int* flags) {
  CUresult error = CUDA_SUCCESS;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* const stream = find_uncaptured(hStream, &error);
  if (stream != nullptr) *flags = stream->flags;
  return error;
}

CUresult stream_get_priority(CUstream hStream, int* priority) {
  CUresult error = CUDA_SUCCESS;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Stream* const stream = find_unbroken(hStream, &error);
  if (stream != nullptr) *priority = stream->priority;
  return error;
}

CUresult stream_get_ctx(CUstream hStream, CUcontext* pctx) {
  CUresult error = CUDA_SUCCESS;
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Stream* const stream = find_unbroken(hStream, &error);
  if (stream == nullptr) return error;
  stream->owner->is_converted = true;
  *pctx = from_wire<CUcontext>(stream->owner->handle);
  return CUDA_SUCCESS;
}

CUresult stream_get_id(CUstream hStream, unsigned long long* streamId) {
  CUresult error = CUDA_SUCCESS;
  if (streamId == nullptr) return CUDA_ERROR_INVALID_VALUE;  // even after an error that stays
  if (const CUresult lasting = Session::get().lasting_error()) return lasting;
  Stream* const stream = find_uncaptured(hStream, &error);
  if (stream != nullptr) *streamId = stream->id;
  return error;
}

CUresult stream_get_ctx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
  if (pCtx == nullptr && pGreenCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult error = CUDA_SUCCESS;
  const Stream* const stream = find_stream(hStream, &error);
  if (stream == nullptr) return error;
  if (pCtx != nullptr) *pCtx = from_wire<CUcontext>(stream->context->handle);
  return pGreenCtx == nullptr ? CUDA_SUCCESS : stream_get_green_ctx(hStream, pGreenCtx);
}

CUresult stream_get_device(CUstream hStream, CUdevice* device) {
  CUresult error = CUDA_SUCCESS;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* const stream = find_uncaptured(hStream, &error);
  if (stream != nullptr) *device = stream->context->device;
  return error;
}

CUresult stream_destroy(CUstream hStream) { return stream_destroy_v2(hStream); }

}  // namespace kvgpu::guest
