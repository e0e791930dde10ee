// SPDX-License-Identifier: Apache-2.0
// Giving work to a stream, and waiting for it.
#pragma once

#include "call.h"
#include "managed_memory.h"

namespace kvgpu::guest {

// The number that, once reached, says that all work given to the stream so far is done.
CUresult mark_stream(Stream& stream, uint64_t* number);

class Enqueue {
 public:
  [[gnu::always_inline]] explicit Enqueue(CUstream stream) : Enqueue(stream, current_itself()) {}

  // On a stream of ours.
  explicit Enqueue(Stream& stream)
      : call_(CaptureRule::ALLOWED, stream.context), stream_(&stream), status_(call_.status()) {}

  CUresult status() const { return status_; }
  Stream& stream() const { return *stream_; }
  const Call& call() const { return call_; }
  Capture* capture() const { return stream_->capture.load(std::memory_order_acquire); }

  // Whether this may be done is the driver's to say: from here on nothing is fire and forget.
  void ask_driver() const { asks_ = true; }

  // Fire and forget; on a capturing stream, or where the caller wants to know, with a reply.
  template <typename Body, typename... Parts>
  CUresult submit(wire::Op op, Body body, const Parts&... parts) const {
    return submit_in_place(op, body, parts...);
  }
  // The same, of a body that need not be copied to be completed.
  template <typename Body, typename... Parts>
  [[gnu::always_inline]] CUresult submit_in_place(wire::Op op, Body& body,
                                                  const Parts&... parts) const {
    body.stream = stream_->handle;
    body.mark = 0;
    if (asks_ || capture() != nullptr) return submit_and_ask(op, body, parts...);
    const ManagedMemory::Giving giving(*stream_);
    if (giving.status() != CUDA_SUCCESS) return giving.status();
    const CUresult result = Session::get().send_work(op, device(), part(body), parts...);
    stream_->dirty.store(true, std::memory_order_release);
    return result;
  }
  template <typename Body, typename... Parts>
  CUresult submit_and_ask(wire::Op op, Body body, Parts... parts) const {
    body.stream = stream_->handle;
    body.mark = 0;
    const ManagedMemory::Giving giving(*stream_);
    if (giving.status() != CUDA_SUCCESS) return giving.status();
    const CUresult result = Session::get().call_work(op, device(), part(body), parts...);
    stream_->dirty.store(true, std::memory_order_release);
    return is_capture_error(result) ? break_capture(*stream_, result) : result;
  }
  // What leaves a stream that is_idle() so.
  template <typename Body>
  CUresult submit_unnoticed(wire::Op op, Body body) const {
    body.stream = stream_->handle;
    body.mark = 0;
    return Session::get().send_work(op, device(), part(body));
  }
  // With a progress number, for streams that do not capture.
  template <typename Body, typename... Parts>
  CUresult submit_marked(wire::Op op, Body body, uint64_t* number, Parts... parts) const {
    if (asks_) {
      const CUresult bad = submit_and_ask(op, body, parts...);
      return bad != CUDA_SUCCESS ? bad : mark_stream(*stream_, number);
    }
    const ManagedMemory::Giving giving(*stream_);
    if (giving.status() != CUDA_SUCCESS) return giving.status();
    const std::lock_guard lock(stream_->mark_mutex);
    stream_->dirty.store(false, std::memory_order_release);
    *number = stream_->issued.load(std::memory_order_relaxed) + 1;
    body.stream = stream_->handle;
    body.mark = *number;
    // Before it is in the ring: what is skipped after an error must be found among the lost.
    Session::get().note_issued(stream_->word, *number);
    const CUresult result = Session::get().send_marked_work(op, device(), part(body), parts...);
    // A number that was not sent is never used again: it may be among the lost ones.
    stream_->issued.store(*number, std::memory_order_release);
    if (result != CUDA_SUCCESS) stream_->dirty.store(true, std::memory_order_release);
    return result;
  }

 private:
  [[gnu::always_inline]] Enqueue(CUstream stream, Context* itself)
      : call_(CaptureRule::ALLOWED, context_of(stream, itself)) {
    if ((status_ = call_.status()) != CUDA_SUCCESS) return;
    Session::get().expect_record();
    stream_ = find_stream_there(stream, &status_, itself);
    if (stream_ != nullptr) status_ = enqueue_allowed(*stream_);
  }

  int device() const { return stream_->context->device; }

  Call call_;
  Stream* stream_ = nullptr;
  CUresult status_ = CUDA_SUCCESS;
  mutable bool asks_ = false;
};

// Has all that was given to the stream come to its end, as far as that was asked for, or been lost?
// `number`: the last one.
[[nodiscard]] bool is_over(Stream& stream, uint64_t* number);

// Is everything done that an event recorded in the stream now would stand for? Then its `number`
// says so.
[[nodiscard]] bool is_idle(Stream& stream, uint64_t* number);

// Like mark_stream(), of work that the driver has: a deferred error is left for a later call to
// return.
CUresult mark_given_work(Stream& stream, uint64_t* number);

// The numbers that, once reached, say the same for all that a synchronisation of the stream waits
// for: for the legacy stream also the blocking streams.
struct StreamNumber {
  uint32_t word;
  uint64_t number;
};
CUresult mark_streams(Stream& stream, std::vector<StreamNumber>* numbers);

// What destroyed streams have still to do, of a context or of a green one. Holding the mutex of the
// former.
enum class Streams { ALL, BLOCKING };
void append_leaving(Context& context, Streams which, std::vector<StreamNumber>* numbers);

// All work so far of all streams of the context that do not capture.
CUresult finish_work(Context& context);

// All work so far, including the device's output where images print.
CUresult synchronize_stream(Stream& stream);

}  // namespace kvgpu::guest
