// SPDX-License-Identifier: Apache-2.0
// Green contexts: the primary context, with streams of their own and some of the device's SMs. The
// context that cuCtxFromGreenCtx makes of one has the same handle.
#include "green_contexts.h"

#include <algorithm>

#include "call.h"
#include "device_resources.h"
#include "driver_waits.h"
#include "generated/api.gen.h"

namespace kvgpu::guest {

namespace {

// One that lives.
CUresult find_living(CUgreenCtx handle, Context** green) {
  *green = tables().contexts.find(to_wire(handle));
  if (*green == nullptr || (*green)->primary == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return (*green)->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

// One that works.
CUresult find_green(CUgreenCtx handle, Context** green) {
  const CUresult bad = Session::get().pending_error();
  return bad != CUDA_SUCCESS ? bad : find_living(handle, green);
}

// Holding the mutex of the primary context. What is called by the streams' handles answers that
// their context is gone, as natively.
void end(Context& green) {
  Session& session = Session::get();
  green.destroyed = true;
  green.active.store(false, std::memory_order_release);
  --green.primary->n_green;
  drop_captures(green);
  std::erase_if(green.primary->streams, [&](Stream* stream) {
    if (stream->owner != &green) return false;
    session.settle_word(stream->word, stream->issued);
    DriverWaits::leave(*stream, stream->issued);
    session.free_word(stream->word, stream->issued);
    return true;
  });
}

CUresult create(Context& green, const DeviceResources& resources, unsigned flags) {
  Context& primary = *green.primary;
  const std::lock_guard lock(primary.mutex);
  if (const CUresult bad = make_legacy_stream(green)) return bad;
  const wire::GreenCreate body{primary.handle,
                               green.handle,
                               green.legacy->handle,
                               green.legacy->word,
                               static_cast<uint32_t>(green.device),
                               flags,
                               static_cast<uint32_t>(resources.size())};
  const CUresult result = Session::get().call(wire::Op::cuGreenCtxCreate, green.device, nullptr,
                                              part(body), part_of(resources));
  if (result != CUDA_SUCCESS) {
    drop_legacy_stream(green);
    return result;
  }
  primary.streams.push_back(green.legacy);
  ++primary.n_green;
  green.active.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult green_ctx_create(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags) {
  if (const CUresult bad = Session::get().pending_error()) return bad;
  const DeviceState* const device = Session::get().find_device(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const DeviceResources all;  // driver 580 takes no descriptor for all that the device has
  const DeviceResources* const resources = desc == nullptr ? &all : find(desc);
  if (phCtx == nullptr || resources == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUcontext retained;
  if (const CUresult bad = device_primary_ctx_retain(&retained, dev)) return bad;
  Context* const green = tables().contexts.create();
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (green != nullptr) {
    green->primary = device->primary;
    green->device = dev;
    green->id = next_context_id();
    result = create(*green, *resources, flags);
    green->destroyed = result != CUDA_SUCCESS;
  }
  if (result != CUDA_SUCCESS) {
    (void)device_primary_ctx_release(dev);
    return result;
  }
  *phCtx = from_wire<CUgreenCtx>(green->handle);
  return CUDA_SUCCESS;
}

CUresult green_ctx_destroy(CUgreenCtx hCtx) {
  Context* green;
  if (const CUresult bad = find_living(hCtx, &green)) return bad;
  {
    const std::lock_guard lock(green->primary->mutex);
    if (green->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    const wire::GreenRef body{green->handle};
    const CUresult result =
        Session::get().call(wire::Op::cuGreenCtxDestroy, green->device, nullptr, part(body));
    if (result != CUDA_SUCCESS) return result;
    end(*green);
  }
  return device_primary_ctx_release(green->device);
}

CUresult ctx_from_green_ctx(CUcontext* pContext, CUgreenCtx hCtx) {
  Context* green;
  if (const CUresult bad = find_green(hCtx, &green)) return bad;
  if (pContext == nullptr) return CUDA_ERROR_INVALID_VALUE;
  green->is_converted = true;
  *pContext = from_wire<CUcontext>(green->handle);
  return CUDA_SUCCESS;
}

CUresult green_ctx_get_dev_resource(CUgreenCtx hCtx, CUdevResource* resource,
                                    CUdevResourceType type) {
  Context* green;
  if (const CUresult bad = find_green(hCtx, &green)) return bad;
  return query_resource(*green, resource, type);
}

CUresult green_ctx_get_id(CUgreenCtx greenCtx, unsigned long long* greenCtxId) {
  Context* green = current_itself();
  if (greenCtx == nullptr && green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUgreenCtx wanted = greenCtx == nullptr ? from_wire<CUgreenCtx>(green->handle) : greenCtx;
  if (const CUresult bad = find_green(wanted, &green)) return bad;
  if (greenCtxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *greenCtxId = green->id;
  return CUDA_SUCCESS;
}

CUresult green_ctx_stream_create(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags,
                                 int priority) {
  Context* green;
  if (const CUresult bad = find_green(greenCtx, &green)) return bad;
  if (phStream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const wire::ContextRetained& info = green->primary->info;
  priority = std::clamp(priority, info.greatest_priority, info.least_priority);
  CUresult error = CUDA_SUCCESS;
  const Stream* const stream = make_stream(*green, flags, priority, &error);
  if (stream == nullptr) return error;
  *phStream = from_wire<CUstream>(stream->handle);
  return CUDA_SUCCESS;
}

CUresult stream_get_green_ctx(CUstream hStream, CUgreenCtx* phCtx) {
  CUresult error = CUDA_SUCCESS;
  if (phCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Stream* const stream = find_stream(hStream, &error);
  if (stream == nullptr) return error;
  const bool is_green = stream->owner != stream->context;
  *phCtx = is_green ? from_wire<CUgreenCtx>(stream->owner->handle) : nullptr;
  return CUDA_SUCCESS;
}

// ---- events of whole contexts, green ones or not

namespace {

CUresult ask(wire::Op op, const Call& call, const Context& context, const Event& event) {
  return Session::get().call_work(op, call.device(),
                                  part(wire::ContextEvent{context.handle, event.handle}));
}

CUresult record(Context* context, CUevent handle) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const Call call(CaptureRule::ALLOWED, &home_of(*context));
  if (call.status() != CUDA_SUCCESS) return call.status();
  Event* const event = find(handle);
  if (event == nullptr || event->context != &home_of(*context)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = break_captures(*context)) return bad;
  const CUresult result = ask(wire::Op::cuCtxRecordEvent, call, *context, *event);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(event->mutex);
  event->recorded = event->by_graph = true;
  event->capture_id = 0;
  return CUDA_SUCCESS;
}

CUresult wait(Context* context, CUevent handle) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const Call call(CaptureRule::ALLOWED, &home_of(*context));
  if (call.status() != CUDA_SUCCESS) return call.status();
  Event* const event = find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t capture_id;
  {
    const std::lock_guard lock(event->mutex);
    capture_id = event->capture_id;
  }
  if (capture_id != 0) return break_capture(capture_id, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (const CUresult bad = break_captures(*context)) return bad;
  return ask(wire::Op::cuCtxWaitEvent, call, *context, *event);
}

}  // namespace

CUresult ctx_record_event(CUcontext hCtx, CUevent hEvent) {
  return record(find_itself(hCtx), hEvent);
}
CUresult ctx_wait_event(CUcontext hCtx, CUevent hEvent) { return wait(find_itself(hCtx), hEvent); }

CUresult green_ctx_record_event(CUgreenCtx hCtx, CUevent hEvent) {
  Context* green;
  if (const CUresult bad = find_green(hCtx, &green)) return bad;
  return record(green, hEvent);
}
CUresult green_ctx_wait_event(CUgreenCtx hCtx, CUevent hEvent) {
  Context* green;
  if (const CUresult bad = find_green(hCtx, &green)) return bad;
  return wait(green, hEvent);
}

}  // namespace kvgpu::guest
