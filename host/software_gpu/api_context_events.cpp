// SPDX-License-Identifier: Apache-2.0
// Events that stand for all work of a context or of a green context.
#include "api.h"
#include "context_captures.h"

using namespace software_gpu;

CUresult software_gpu::refuse_captures(Context& context, const GreenContext* only) {
  CUresult result = CUDA_SUCCESS;
  std::lock_guard lock(context.order_mutex);
  for (const auto& stream : context.all_streams(only)) {
    if (!stream->capture) continue;
    stream->capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

namespace {

CUresult record(const ContextHandle& of, CUevent handle) {
  Context& context = *of.context;
  const auto event = Driver::instance().events.find(handle);
  if (!event || &event->context != &context) return CUDA_ERROR_INVALID_HANDLE;
  RETURN_IF_FAILED(refuse_captures(context, of.green));
  std::lock_guard lock(context.order_mutex);
  auto fresh = std::make_shared<Event::Record>();
  const auto queue = std::make_shared<Queue>(context);
  fresh->point = queue->push(stamp(fresh), context.ends(of.green));
  queue->close();
  event->capture.reset();
  event->capture_front.clear();
  event->last = std::move(fresh);
  return CUDA_SUCCESS;
}

CUresult wait(const ContextHandle& of, CUevent handle) {
  const auto event = Driver::instance().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  Point point;
  {
    std::lock_guard lock(event->context.order_mutex);
    if (event->capture) {
      event->capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (event->last) point = event->last->point;
  }
  RETURN_IF_FAILED(refuse_captures(*of.context, of.green));
  std::lock_guard lock(of.context->order_mutex);
  if (!point.reached()) (of.green ? of.green->gates : of.context->gates).push_back(point);
  return CUDA_SUCCESS;
}

CUresult find(CUcontext handle, ContextHandle* found) {
  RETURN_IF_FAILED(enter_without_context());
  *found = find_context(handle);
  return found->context ? found->context->sticky_error() : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult find(CUgreenCtx handle, ContextHandle* found) {
  RETURN_IF_FAILED(enter_without_context());
  const auto green = Driver::instance().green_contexts.find(handle);
  if (!green || green->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
  *found = {&green->primary, green.get()};
  return found->context->sticky_error();
}

}  // namespace

SOFTWARE_GPU_API cuCtxRecordEvent(CUcontext context, CUevent event) {
  ContextHandle found;
  RETURN_IF_FAILED(find(context, &found));
  return record(found, event);
}
SOFTWARE_GPU_API cuCtxWaitEvent(CUcontext context, CUevent event) {
  ContextHandle found;
  RETURN_IF_FAILED(find(context, &found));
  return wait(found, event);
}
SOFTWARE_GPU_API cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
  ContextHandle found;
  RETURN_IF_FAILED(find(green, &found));
  return record(found, event);
}
SOFTWARE_GPU_API cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  ContextHandle found;
  RETURN_IF_FAILED(find(green, &found));
  return wait(found, event);
}
