// SPDX-License-Identifier: Apache-2.0
// What every served call does first, and how it reaches the worker.
#pragma once

#include "capture.h"
#include "contexts.h"
#include "kvgpu/calls.h"
#include "kvgpu/opcodes.gen.h"
#include "session.h"

namespace kvgpu::guest {

// CUDA 13.0, cuThreadExchangeStreamCaptureMode: "potentially unsafe" calls are forbidden while
// certain captures go on.
enum class CaptureRule { ALLOWED, FORBIDDEN };
// Libraries belong to no context: they load before there is one.
enum class ContextRule { NEEDED, OPTIONAL };

class Call {
 public:
  // Needs a current context unless `context` is given.
  [[gnu::always_inline]] explicit Call(CaptureRule rule, Context* context = nullptr,
                                       ContextRule context_rule = ContextRule::NEEDED)
      : context_(context) {
    // Of work for a stream, nearly always.
    const bool is_plain = context != nullptr && rule == CaptureRule::ALLOWED;
    const bool may_go =
        is_plain && context->active.load(std::memory_order_acquire) && Session::get().lets_go_on();
    if (!may_go) check(rule, context_rule);
  }

  CUresult status() const { return status_; }
  wire::Handle context() const { return context_ == nullptr ? 0 : context_->handle; }
  int device() const { return context_ == nullptr ? 0 : context_->device; }
  Context& context_object() const { return *context_; }

  template <typename In>
  CUresult sync(wire::Op op, const In& in, Part rest = {nullptr, 0}) const {
    return Session::get().call(op, device(), nullptr, part(in), rest);
  }
  // `out` is filled where the call succeeds; a shorter reply leaves zeroes.
  template <typename In, typename Out>
    requires(!std::is_same_v<Out, Part>)
  CUresult sync(wire::Op op, const In& in, Out* out, Part rest = {nullptr, 0},
                Part more = {nullptr, 0}) const {
    *out = {};
    ReplyBuffer buffer{out, sizeof(Out)};
    return Session::get().call(op, device(), &buffer, part(in), rest, more);
  }
  template <typename In>
  CUresult async(wire::Op op, const In& in) const {
    return Session::get().send(op, device(), part(in));
  }

 private:
  void check(CaptureRule rule, ContextRule context_rule) {
    if (context_ == nullptr) context_ = current_context();
    // On driver 580 an error is a context's: without one it is the context that is missed.
    const bool is_missed = context_ == nullptr && context_rule == ContextRule::NEEDED;
    if (!is_missed && (status_ = Session::get().pending_error()) != CUDA_SUCCESS) return;
    if (Session::in_callback()) {
      status_ = CUDA_ERROR_NOT_PERMITTED;
      return;
    }
    const bool usable = context_ != nullptr && context_->active.load(std::memory_order_acquire);
    if (!usable && context_rule == ContextRule::NEEDED) {
      status_ = context_ == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    } else if (rule == CaptureRule::FORBIDDEN) {
      status_ = unsafe_call_allowed();
    }
    if (!usable) context_ = nullptr;
  }

  Context* context_;
  CUresult status_ = CUDA_SUCCESS;
};

}  // namespace kvgpu::guest
