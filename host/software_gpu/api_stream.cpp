// SPDX-License-Identifier: Apache-2.0
// Streams, host functions, and values that streams write and wait for.
#include <sched.h>
#include <time.h>

#include "api.h"
#include "context_captures.h"

namespace software_gpu {

CUresult find_stream(Context& context, CUstream handle, std::shared_ptr<Stream>* stream) {
  *stream = context.stream_of(handle);
  if (!*stream) return CUDA_ERROR_INVALID_HANDLE;
  const GreenContext* const green = (*stream)->green;
  return green && green->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult find_unbroken(Context& context, CUstream handle, std::shared_ptr<Stream>* stream) {
  RETURN_IF_FAILED(find_stream(context, handle, stream));
  std::lock_guard lock(context.order_mutex);
  const bool is_broken = (*stream)->capture && (*stream)->capture->invalid;
  return is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

/// Under order_mutex.
static CUresult end_captures_in_the_way(Context& context, const Stream& stream) {
  const auto captures = context.captures_in_the_way(stream);
  for (const auto& capture : captures) capture->invalid = true;
  return captures.empty() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult find_to_enqueue(Context& context, CUstream handle, std::shared_ptr<Stream>* stream) {
  RETURN_IF_FAILED(find_unbroken(context, handle, stream));
  std::lock_guard lock(context.order_mutex);
  return end_captures_in_the_way(context, **stream);
}

CUresult refuse_question(Context& context, Stream& stream) {
  std::lock_guard lock(context.order_mutex);
  if (!stream.capture) return CUDA_SUCCESS;
  stream.capture->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult finish_wait(Context& context) {
  context.printed.flush();
  return context.sticky_error();
}

CUresult finish_synchronization(Context& context) {
  for (const auto& pool : Driver::instance().pools.all()) pool->trim(pool->release_threshold);
  return finish_wait(context);
}

CUresult submit_and_wait(Context& context, Stream& stream, Operation operation) {
  Point end;
  RETURN_IF_FAILED(context.submit(stream, std::move(operation), &end));
  end.wait();
  return finish_wait(context);
}

}  // namespace software_gpu

using namespace software_gpu;

namespace {

/// Host functions run one at a time, as the real driver does.
std::mutex& host_function_mutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

template <class F>
void call_host(F function) {
  std::lock_guard lock(host_function_mutex());
  in_host_function() = true;
  function();
  in_host_function() = false;
}

CUresult create(CUstream* handle, unsigned flags, int priority) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!handle || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (current().green) flags |= CU_STREAM_NON_BLOCKING;  // a green context has no others
  auto stream = std::make_shared<Stream>(*context, flags, priority, current().green);
  *handle = reinterpret_cast<CUstream>(stream.get());
  context->streams.add(std::move(stream));
  return CUDA_SUCCESS;
}

/// For calls that may not be made on a capturing stream: they end the capture.
CUresult refuse_capture(Context& context, Stream& stream) {
  std::lock_guard lock(context.order_mutex);
  if (stream.capture) {
    stream.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return end_captures_in_the_way(context, stream);
}

/// Likewise, and potentially unsafe whatever the stream.
CUresult refuse_wait(Context& context, Stream& stream) {
  RETURN_IF_FAILED(refuse_capture(context, stream));
  return check_capture_safe(context);
}

/// The work of the stream so far.
Point work_of(Context& context, Stream& stream) {
  std::lock_guard lock(context.order_mutex);
  return stream.queue->end();
}

}  // namespace

SOFTWARE_GPU_API cuStreamCreate(CUstream* stream, unsigned flags) {
  return create(stream, flags, 0);
}
SOFTWARE_GPU_API cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return create(stream, flags, priority);
}

SOFTWARE_GPU_API cuStreamDestroy_v2(CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  auto stream = context->streams.find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->green && stream->green->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  stream = context->streams.take(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(context->order_mutex);
  if (stream->capture) stream->capture->invalid = true;
  if (Point end = stream->queue->end(); !end.reached()) context->orphans.push_back(std::move(end));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamQuery(CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  RETURN_IF_FAILED(refuse_wait(*context, *stream));
  if (!work_of(*context, *stream).reached()) return CUDA_ERROR_NOT_READY;
  return context->sticky_error();
}

SOFTWARE_GPU_API cuStreamSynchronize(CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  RETURN_IF_FAILED(refuse_wait(*context, *stream));
  // The legacy stream stands behind all blocking streams, even before anything was put on it.
  if (stream->is_legacy)
    RETURN_IF_FAILED(submit_and_wait(
        *context, *stream, {CU_GRAPH_NODE_TYPE_EMPTY, [](Context&) { return CUDA_SUCCESS; }, {}}));
  else
    work_of(*context, *stream).wait();
  return finish_synchronization(*context);
}

SOFTWARE_GPU_API cuStreamGetFlags(CUstream handle, unsigned* flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  RETURN_IF_FAILED(refuse_question(*context, *stream));
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamGetPriority(CUstream handle, int* priority) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_unbroken(*context, handle, &stream));
  std::lock_guard lock(context->order_mutex);
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamGetId(CUstream handle, unsigned long long* id) {
  RETURN_IF_FAILED(enter_without_context());
  if (!id) return CUDA_ERROR_INVALID_VALUE;  // as on driver 580 even in a broken context
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  RETURN_IF_FAILED(refuse_question(*context, *stream));
  *id = stream->id;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamGetDevice(CUstream handle, CUdevice* device) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  RETURN_IF_FAILED(refuse_question(*context, *stream));
  *device = context->device.ordinal;
  return CUDA_SUCCESS;
}

CUresult software_gpu::make_host(const CUDA_HOST_NODE_PARAMS& p, Operation* operation) {
  if (!p.fn) return CUDA_ERROR_INVALID_VALUE;
  auto params = std::make_shared<NodeParams>();
  params->host = p;
  operation->type = CU_GRAPH_NODE_TYPE_HOST;
  operation->params = std::move(params);
  operation->run = [p](Context&) {
    call_host([&] { p.fn(p.userData); });
    return CUDA_SUCCESS;
  };
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  Operation operation;
  RETURN_IF_FAILED(make_host({function, data}, &operation));
  return context->submit(*stream, std::move(operation));
}

SOFTWARE_GPU_API cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                                     unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  if (!callback || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  RETURN_IF_FAILED(refuse_capture(*context, *stream));
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_HOST;
  operation.run = [=](Context& c) {
    call_host([&] { callback(handle, c.sticky_error(), data); });
    return CUDA_SUCCESS;
  };
  return context->submit(*stream, std::move(operation));
}
