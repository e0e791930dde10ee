// SPDX-License-Identifier: Apache-2.0
// Device resources, green contexts, events of whole contexts.
#include <algorithm>
#include <vector>

#include "generated/handlers.gen.h"
#include "handlers/contexts.h"
#include "kvgpu/calls.h"
#include "kvgpu/context_calls.h"

namespace kvgpu::worker {

namespace {

// What follows a record's head.
template <typename Head>
CUresult read_resources(Session& session, const Task& task, uint32_t n,
                        std::vector<CUdevResource>* resources) {
  const auto rest = task.after<Head>();
  if (n > wire::MAX_DEV_RESOURCES || rest.size() < n * sizeof(wire::DevResource)) {
    session.violation(task);
  }
  resources->resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    wire::DevResource each;
    std::memcpy(&each, rest.data() + i * sizeof each, sizeof each);
    if (!session.device_resources.take(each, &(*resources)[i])) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult device_get_dev_resource(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GetDevResource body;
  if (!task.read(&body)) session.violation(task);
  const DriverTable& driver = *session.driver;
  const auto type = static_cast<CUdevResourceType>(body.type);
  CUdevResource found{};
  CUresult result;
  if (body.context == 0) {
    result = driver.cuDeviceGetDevResource(static_cast<CUdevice>(body.device), &found, type);
  } else {
    const auto context = session.handles.context(body.context);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    result = driver.cuCtxGetDevResource(context->raw, &found, type);
  }
  if (result != CUDA_SUCCESS) return result;
  wire::DevResource out;
  if (!session.device_resources.give(found, &out)) return CUDA_ERROR_OUT_OF_MEMORY;
  reply.put(out);
  return CUDA_SUCCESS;
}

CUresult dev_sm_resource_split_by_count(Session& session, const Task& task, ReplyWriter& reply) {
  wire::SplitDevResource body;
  if (!task.read(&body)) session.violation(task);
  CUdevResource input;
  if (!session.device_resources.take(body.input, &input)) {
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  }
  std::vector<CUdevResource> groups(
      body.wants_groups == 0 ? 0 : std::min(body.n_groups, wire::MAX_DEV_RESOURCES));
  unsigned n = static_cast<unsigned>(groups.size());
  CUdevResource remaining{};
  const CUresult result = session.driver->cuDevSmResourceSplitByCount(
      body.wants_groups == 0 ? nullptr : groups.data(), &n, &input, &remaining, body.flags,
      body.min_count);
  if (result != CUDA_SUCCESS) return result;
  // There would be more of them.
  if (groups.size() < body.n_groups && n == wire::MAX_DEV_RESOURCES)
    return CUDA_ERROR_NOT_SUPPORTED;
  wire::DevResourceSplit out{};
  out.n_groups = n;
  out.n_given = std::min<uint32_t>(n, static_cast<uint32_t>(groups.size()));
  std::vector<wire::DevResource> given(out.n_given);
  bool fits = session.device_resources.give(remaining, &out.remaining);
  for (uint32_t i = 0; i < out.n_given; ++i) {
    fits = fits && session.device_resources.give(groups[i], &given[i]);
  }
  if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
  reply.put(out);
  reply.put_bytes(given.data(), given.size() * sizeof given[0]);
  return CUDA_SUCCESS;
}

// The driver's verdict. The descriptor itself is made anew for each green context: the driver has
// no call that would give one back, and the guest names resources, not descriptors.
CUresult dev_resource_generate_desc(Session& session, const Task& task, ReplyWriter&) {
  wire::DescribeDevResources body;
  if (!task.read(&body)) session.violation(task);
  if (body.n == 0) session.violation(task);  // driver 580 does not survive that
  std::vector<CUdevResource> resources;
  const CUresult bad =
      read_resources<wire::DescribeDevResources>(session, task, body.n, &resources);
  if (bad != CUDA_SUCCESS) return bad;
  CUdevResourceDesc desc = nullptr;
  return session.driver->cuDevResourceGenerateDesc(&desc, resources.data(), body.n);
}

CUresult green_ctx_create(Session& session, const Task& task, ReplyWriter&) {
  wire::GreenCreate body;
  if (!task.read(&body)) session.violation(task);
  const auto primary = session.handles.context(body.primary);
  const wire::ContextRetain names{body.green,  body.legacy_stream, body.legacy_word,
                                  body.device, body.flags,         0};
  check_new_context(session, task, names);
  if (primary == nullptr || !primary->is_primary || !is_for_device(task, *primary)) {
    session.violation(task);
  }
  const DriverTable& driver = *session.driver;
  std::vector<CUdevResource> resources;
  if (const CUresult bad = read_resources<wire::GreenCreate>(session, task, body.n, &resources)) {
    return bad;
  }
  CUdevResourceDesc desc = nullptr;
  if (body.n != 0) {
    const CUresult bad = driver.cuDevResourceGenerateDesc(&desc, resources.data(), body.n);
    if (bad != CUDA_SUCCESS) return bad;
  }
  auto context = std::make_shared<Context>();
  context->device = primary->device;
  context->primary_handle = body.primary;
  CUresult result = driver.cuGreenCtxCreate(&context->green, desc,
                                            static_cast<CUdevice>(body.device), body.flags);
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuCtxFromGreenCtx(&context->raw, context->green);
  if (result != CUDA_SUCCESS) {
    (void)driver.cuGreenCtxDestroy(context->green);
    return result;
  }
  add_context(session, task, names, context);
  return CUDA_SUCCESS;
}

CUresult green_ctx_destroy(Session& session, const Task& task, ReplyWriter&) {
  wire::GreenRef body;
  if (!task.read(&body)) session.violation(task);
  const auto known = session.handles.context(body.green);
  if (known == nullptr || known->green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // It must not be current here while it goes.
  if (const CUresult bad = session.enter(known->primary_handle)) return bad;
  const auto context = take_context(session, body.green);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return session.driver->cuGreenCtxDestroy(context->green);
}

namespace {

CUresult read_event(Session& session, const Task& task, std::shared_ptr<Context>* context,
                    CUevent* event) {
  wire::ContextEvent body;
  if (!task.read(&body)) session.violation(task);
  *context = session.handles.context(body.context);
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!session.handles.get(body.event, event)) return CUDA_ERROR_INVALID_HANDLE;
  return session.enter(**context);
}

}  // namespace

CUresult ctx_record_event(Session& session, const Task& task, ReplyWriter&) {
  std::shared_ptr<Context> context;
  CUevent event;
  if (const CUresult bad = read_event(session, task, &context, &event)) return bad;
  return context->green != nullptr ? session.driver->cuGreenCtxRecordEvent(context->green, event)
                                   : session.driver->cuCtxRecordEvent(context->raw, event);
}

CUresult ctx_wait_event(Session& session, const Task& task, ReplyWriter&) {
  std::shared_ptr<Context> context;
  CUevent event;
  if (const CUresult bad = read_event(session, task, &context, &event)) return bad;
  return context->green != nullptr ? session.driver->cuGreenCtxWaitEvent(context->green, event)
                                   : session.driver->cuCtxWaitEvent(context->raw, event);
}

}  // namespace kvgpu::worker
