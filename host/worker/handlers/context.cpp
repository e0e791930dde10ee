// SPDX-License-Identifier: Apache-2.0
// Contexts: the primary one of each device and those of cuCtxCreate.
#include <cstring>
#include <vector>

#include "generated/handlers.gen.h"
#include "handlers/contexts.h"
#include "kvgpu/context_calls.h"
#include "progress_watch.h"

namespace kvgpu::worker {

namespace {

constexpr uint32_t GUEST_FLAGS =
    CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | CU_CTX_SYNC_MEMOPS;

// What a new context needs before the guest may use it: session memory known to the driver, a
// stream for the watcher. `context` is complete but for that.
CUresult prepare(Session& session, Context& context, wire::ContextRetained* out) {
  const DriverTable& driver = *session.driver;
  if (const CUresult bad = session.enter(context)) return bad;
  if (const CUresult bad = session.register_session_memory(context)) return bad;
  CUresult result = driver.cuStreamCreate(&context.watch_stream, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) {
    result = driver.cuCtxGetStreamPriorityRange(&out->least_priority, &out->greatest_priority);
  }
  if (result == CUDA_SUCCESS) result = driver.cuCtxGetApiVersion(context.raw, &out->api_version);
  // The caller ends the context.
  if (result != CUDA_SUCCESS) session.end_registrations(context);
  return result;
}

}  // namespace

void add_context(Session& session, const Task& task, const wire::ContextRetain& body,
                 const std::shared_ptr<Context>& context) {
  auto legacy = std::make_shared<Stream>();
  legacy->raw = CU_STREAM_LEGACY;
  legacy->context = context;
  legacy->context_handle = body.context;
  legacy->progress = session.progress_word(body.legacy_word);
  context->legacy_handle = body.legacy_stream;
  if (!session.handles.add(body.context, context) ||
      !session.handles.add(body.legacy_stream, legacy)) {
    session.violation(task);
  }
}

void check_new_context(Session& session, const Task& task, const wire::ContextRetain& body) {
  if (session.progress_word(body.legacy_word) == nullptr ||
      body.device != wire::target_device(task.header.target)) {
    session.violation(task);
  }
}

// First out of the tables: the watcher must not ask a stream that goes.
std::shared_ptr<Context> take_context(Session& session, wire::Handle handle) {
  auto context = session.handles.context(handle);
  if (context != nullptr) {
    session.handles.each_stream([&](const Stream& stream) {
      if (session.progress == nullptr || stream.context_handle != handle) return;
      session.progress->forget(static_cast<uint32_t>(stream.progress - session.progress_word(0)));
    });
    session.handles.remove_streams_of(handle);
    session.handles.remove(handle);
    session.images.forget(handle);
    const std::unique_lock lock(context->watch->mutex);
    context->watch->is_over = true;
  }
  return context;
}

// `ready`: retained already; null: not yet. Retained no more where this fails.
static CUresult begin_primary(Session& session, CUdevice device, const wire::ContextRetain& body,
                              CUcontext ready, Context& context, wire::ContextRetained* out) {
  const DriverTable& driver = *session.driver;
  context.device = static_cast<int>(body.device);
  context.is_primary = true;
  context.raw = ready;
  if (ready == nullptr) {
    if (const CUresult bad = driver.cuDevicePrimaryCtxSetFlags_v2(device, body.flags)) return bad;
    if (const CUresult bad = driver.cuDevicePrimaryCtxRetain(&context.raw, device)) return bad;
  }
  const CUresult result = prepare(session, context, out);
  if (result != CUDA_SUCCESS) (void)driver.cuDevicePrimaryCtxRelease_v2(device);
  return result;
}

CUresult device_primary_ctx_retain(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ContextRetain body;
  if (!task.read(&body)) session.violation(task);
  check_new_context(session, task, body);
  const DriverTable& driver = *session.driver;
  bool in_use = false;
  session.handles.each_context([&](const Context& other) {
    in_use |= other.is_primary && other.device == static_cast<int>(body.device);
  });
  if (in_use) session.violation(task);  // one handle for a primary context
  if ((body.flags & ~GUEST_FLAGS) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevice device;
  if (const CUresult bad = driver.cuDeviceGet(&device, static_cast<int>(body.device))) return bad;
  auto context = std::make_shared<Context>();
  wire::ContextRetained out{};
  const CUcontext ready =
      session.ready_context.take(driver, static_cast<int>(body.device), body.flags);
  CUresult result = begin_primary(session, device, body, ready, *context, &out);
  if (result != CUDA_SUCCESS && ready != nullptr) {  // it has broken while it waited
    context = std::make_shared<Context>();
    result = begin_primary(session, device, body, nullptr, *context, &out);
  }
  if (result != CUDA_SUCCESS) return result;
  add_context(session, task, body, context);
  reply.put(out);
  return CUDA_SUCCESS;
}

// The only reference is given up, as programs do. (A reset has crashed in driver 580.)
static CUresult end_primary(const DriverTable& driver, CUdevice device) {
  const CUresult result = driver.cuDevicePrimaryCtxRelease_v2(device);
  unsigned flags;
  int is_active = 0;
  const CUresult known = driver.cuDevicePrimaryCtxGetState(device, &flags, &is_active);
  return known == CUDA_SUCCESS && is_active != 0 ? driver.cuDevicePrimaryCtxReset_v2(device)
                                                 : result;
}

// The guest resets, or releases its last reference.
CUresult device_primary_ctx_reset(Session& session, const Task& task, ReplyWriter&) {
  wire::ContextReset body;
  if (!task.read(&body)) session.violation(task);
  const auto known = session.handles.context(body.context);
  if (known == nullptr || !known->is_primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult bad = session.enter(*known)) return bad;
  const auto context = take_context(session, body.context);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;  // another thread was quicker
  for (const wire::Handle green : session.handles.green_contexts_of(body.context)) {
    (void)take_context(session, green);
  }
  // The work that uses session memory ends first; what it ended with is the reset's to report.
  (void)session.driver->cuCtxSynchronize();
  session.end_registrations(*context);
  const CUresult result = end_primary(*session.driver, context->device);
  session.output.deliver(session.events);
  (void)session.forget_device_ranges(body.context);
  std::vector<Context> others;
  session.handles.each_context([&](Context& other) { others.push_back(other); });
  if (result != CUDA_SUCCESS || others.empty()) return result;
  if (const CUresult bad = session.enter(others.front())) return bad;
  return session.register_session_memory(others.front());
}

static std::vector<CUexecAffinityParam> read_affinity(Session& session, const Task& task,
                                                      uint32_t n) {
  const auto rest = task.after<wire::ContextRetain>();
  if (n > wire::MAX_EXEC_AFFINITY || rest.size() < n * sizeof(wire::ExecAffinity)) {
    session.violation(task);
  }
  std::vector<CUexecAffinityParam> params(n);
  for (uint32_t i = 0; i < n; ++i) {
    wire::ExecAffinity each;
    std::memcpy(&each, rest.data() + i * sizeof each, sizeof each);
    params[i].type = static_cast<CUexecAffinityType>(each.type);
    params[i].param.smCount.val = each.value;
  }
  return params;
}

CUresult ctx_create_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ContextRetain body;
  if (!task.read(&body)) session.violation(task);
  check_new_context(session, task, body);
  const DriverTable& driver = *session.driver;
  if ((body.flags & ~GUEST_FLAGS) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevice device;
  if (const CUresult bad = driver.cuDeviceGet(&device, static_cast<int>(body.device))) return bad;
  auto context = std::make_shared<Context>();
  context->device = static_cast<int>(body.device);
  auto affinity = read_affinity(session, task, body.n_affinity);
  session.ready_context.drop(driver);
  const CUresult made = affinity.empty() ? driver.cuCtxCreate_v2(&context->raw, body.flags, device)
                                         : driver.cuCtxCreate_v3(&context->raw, affinity.data(),
                                                                 static_cast<int>(affinity.size()),
                                                                 body.flags, device);
  if (made != CUDA_SUCCESS) return made;
  // This thread's current context is enter()'s to choose.
  CUcontext popped = nullptr;
  if (const CUresult bad = driver.cuCtxPopCurrent_v2(&popped)) return bad;
  wire::ContextRetained out{};
  if (const CUresult bad = prepare(session, *context, &out)) {
    (void)driver.cuCtxDestroy_v2(context->raw);
    return bad;
  }
  add_context(session, task, body, context);
  reply.put(out);
  return CUDA_SUCCESS;
}

CUresult ctx_destroy_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::ContextReset body;
  if (!task.read(&body)) session.violation(task);
  const auto known = session.handles.context(body.context);
  if (known == nullptr || known->is_primary || known->green != nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const Session::Arrays arrays{session.handles.owned_by<CUarray>(body.context),
                               session.handles.owned_by<CUmipmappedArray>(body.context)};
  const auto context = take_context(session, body.context);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return session.retire_context(*context, body.context, arrays);
}

CUresult ctx_set_flags(Session& session, const Task& task, ReplyWriter&) {
  wire::ContextFlags body;
  if (!task.read(&body)) session.violation(task);
  if ((body.flags & ~GUEST_FLAGS) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = session.enter(body.context)) return bad;
  if (session.driver->cuCtxSetFlags == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return session.driver->cuCtxSetFlags(body.flags);
}

CUresult ctx_get_exec_affinity(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GetExecAffinity body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUexecAffinityParam found{};
  const CUresult result =
      session.driver->cuCtxGetExecAffinity(&found, static_cast<CUexecAffinityType>(body.type));
  reply.put(wire::ExecAffinity{static_cast<uint32_t>(found.type), found.param.smCount.val});
  return result;
}

}  // namespace kvgpu::worker
