// SPDX-License-Identifier: Apache-2.0
// Primary contexts.
#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

CUresult device_primary_ctx_retain(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ContextRetain body;
  if (!task.read(&body)) session.violation(task);
  const DriverTable& driver = *session.driver;
  uint64_t* const word = session.progress_word(body.legacy_word);
  if (word == nullptr) session.violation(task);
  if (body.device != wire::target_device(task.header.target)) session.violation(task);
  bool in_use = false;
  session.handles.each_context(
      [&](const Context& other) { in_use |= other.device == static_cast<int>(body.device); });
  if (in_use) session.violation(task);  // one handle for a primary context
  constexpr uint32_t GUEST_FLAGS = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX;
  if ((body.flags & ~GUEST_FLAGS) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevice device;
  if (const CUresult bad = driver.cuDeviceGet(&device, static_cast<int>(body.device))) return bad;
  if (const CUresult bad = driver.cuDevicePrimaryCtxSetFlags_v2(device, body.flags)) return bad;
  auto context = std::make_shared<Context>();
  context->device = static_cast<int>(body.device);
  if (const CUresult bad = driver.cuDevicePrimaryCtxRetain(&context->raw, device)) return bad;
  wire::ContextRetained out{};
  CUresult result = driver.cuCtxSetCurrent(context->raw);
  if (result == CUDA_SUCCESS) result = session.enter(*context);
  if (result == CUDA_SUCCESS) result = session.register_session_memory();
  if (result == CUDA_SUCCESS) {
    result = driver.cuStreamCreate(&context->watch_stream, CU_STREAM_NON_BLOCKING);
  }
  if (result == CUDA_SUCCESS) {
    result = driver.cuCtxGetStreamPriorityRange(&out.least_priority, &out.greatest_priority);
  }
  if (result == CUDA_SUCCESS) result = driver.cuCtxGetApiVersion(context->raw, &out.api_version);
  if (result != CUDA_SUCCESS) {
    (void)driver.cuDevicePrimaryCtxRelease_v2(device);
    return result;
  }
  auto legacy = std::make_shared<Stream>();
  legacy->raw = CU_STREAM_LEGACY;
  legacy->context = context;
  legacy->context_handle = body.context;
  legacy->progress = word;
  if (!session.handles.add(body.context, context) ||
      !session.handles.add(body.legacy_stream, legacy)) {
    session.violation(task);
  }
  reply.put(out);
  return CUDA_SUCCESS;
}

// The guest resets, or releases its last reference.
CUresult device_primary_ctx_reset(Session& session, const Task& task, ReplyWriter&) {
  wire::ContextReset body;
  if (!task.read(&body)) session.violation(task);
  const auto context = session.handles.context(body.context);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult bad = session.enter(*context)) return bad;
  // First out of the table: the watcher must not ask a stream that goes.
  session.handles.remove_streams_of(body.context);
  session.handles.remove(body.context);
  const CUresult result = session.driver->cuDevicePrimaryCtxReset_v2(context->device);
  session.output.deliver(session.events);
  session.forget_registrations();
  if (session.n_devices == 1) session.forget_device_ranges();
  return result;
}

}  // namespace kvgpu::worker
