// SPDX-License-Identifier: Apache-2.0
// Device resources, green contexts, and which of them a stream belongs to.
#include <algorithm>
#include <cstring>
#include <set>

#include "api.h"
#include "engine.h"

using namespace software_gpu;

namespace {

constexpr unsigned MIN_SMS = 1;  // of a partition, whose size is a multiple of that
constexpr uint32_t ORIGIN_MAGIC = 0x6b76534d;

/// Where a resource comes from: what is kept in CUdevResource::_internal_padding.
struct Origin {
  uint32_t magic;
  int32_t device;
  uint64_t split;  // number of the split that made it; 0: of a query
  uint64_t first;  // of its SMs, counted in what was split
};
static_assert(sizeof(Origin) <= sizeof CUdevResource::_internal_padding);

std::atomic<uint64_t> next_split{1};

CUdevResource make_resource(Origin origin, unsigned n_sms) {
  CUdevResource resource{};
  if (n_sms == 0) return resource;  // of type CU_DEV_RESOURCE_TYPE_INVALID
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm = {n_sms, MIN_SMS, MIN_SMS};
  origin.magic = ORIGIN_MAGIC;
  memcpy(resource._internal_padding, &origin, sizeof origin);
  return resource;
}

CUresult read_origin(const CUdevResource& resource, Origin* origin) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  memcpy(origin, resource._internal_padding, sizeof *origin);
  if (origin->magic != ORIGIN_MAGIC || !Driver::instance().device(origin->device) ||
      resource.sm.smCount == 0 || resource.sm.smCount > n_cores())
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  return CUDA_SUCCESS;
}

CUresult query(const Device& device, unsigned n_sms, CUdevResourceType type, CUdevResource* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *out = make_resource({0, device.ordinal, 0, 0}, n_sms);
  return CUDA_SUCCESS;
}

/// One that lives.
CUresult find_living(CUgreenCtx handle, std::shared_ptr<GreenContext>* green) {
  RETURN_IF_FAILED(enter_without_context());
  *green = Driver::instance().green_contexts.find(handle);
  if (!*green) return CUDA_ERROR_INVALID_CONTEXT;
  return (*green)->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

/// One that works.
CUresult find_green(CUgreenCtx handle, std::shared_ptr<GreenContext>* green) {
  RETURN_IF_FAILED(find_living(handle, green));
  return (*green)->primary.sticky_error();
}

/// What a stream belongs to; the default ones, as CUDA has it, to what is current.
CUresult find_owner(CUstream handle, ContextHandle* owner) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_unbroken(*context, handle, &stream));
  *owner = {context, stream->green};
  return CUDA_SUCCESS;
}

CUgreenCtx handle_of(GreenContext* green) { return reinterpret_cast<CUgreenCtx>(green); }

}  // namespace

SOFTWARE_GPU_API cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* resource,
                                        CUdevResourceType type) {
  RETURN_IF_FAILED(enter_without_context());
  const Device* const device = Driver::instance().device(ordinal);
  return device ? query(*device, n_cores(), type, resource) : CUDA_ERROR_INVALID_DEVICE;
}

SOFTWARE_GPU_API cuCtxGetDevResource(CUcontext handle, CUdevResource* resource,
                                     CUdevResourceType type) {
  RETURN_IF_FAILED(enter_without_context());
  const ContextHandle found = find_context(handle);
  if (!found.context) return CUDA_ERROR_INVALID_CONTEXT;
  RETURN_IF_FAILED(found.context->sticky_error());
  return query(found.context->device, found.green ? found.green->n_sms : n_cores(), type, resource);
}

SOFTWARE_GPU_API cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource,
                                          CUdevResourceType type) {
  std::shared_ptr<GreenContext> green;
  RETURN_IF_FAILED(find_green(handle, &green));
  return query(green->primary.device, green->n_sms, type, resource);
}

SOFTWARE_GPU_API cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* n_groups,
                                             const CUdevResource* input, CUdevResource* remaining,
                                             unsigned flags, unsigned min_count) {
  RETURN_IF_FAILED(enter_without_context());
  if (!n_groups || !input) return CUDA_ERROR_INVALID_VALUE;
  Origin origin;
  RETURN_IF_FAILED(read_origin(*input, &origin));
  if (origin.split != 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (min_count > input->sm.smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  // For devices of compute capability 9.0 and later only.
  if (flags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE) return CUDA_ERROR_NOT_SUPPORTED;
  const unsigned each = std::max(min_count, MIN_SMS);
  const unsigned n_possible = input->sm.smCount / each;
  const unsigned n = result ? std::min(*n_groups, n_possible) : n_possible;
  origin.split = next_split++;
  const auto part = [&](unsigned first, unsigned n_sms) {
    return make_resource({0, origin.device, origin.split, first}, n_sms);
  };
  const unsigned n_sms = input->sm.smCount;  // `remaining` may be the input
  for (unsigned i = 0; result && i < n; ++i) result[i] = part(i * each, each);
  if (remaining) *remaining = part(n * each, n_sms - n * each);
  *n_groups = n;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDevResourceGenerateDesc(CUdevResourceDesc* handle, CUdevResource* resources,
                                           unsigned n) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle || !resources || n == 0) return CUDA_ERROR_INVALID_VALUE;
  // As on driver 580, which unites what it is given, wherever that comes from.
  std::set<std::pair<uint64_t, uint64_t>> parts;
  unsigned n_sms = 0;
  Origin origin;
  for (unsigned i = 0; i < n; ++i) {
    RETURN_IF_FAILED(read_origin(resources[i], &origin));
    if (parts.emplace(origin.split, origin.first).second) n_sms += resources[i].sm.smCount;
  }
  n_sms = std::min(n_sms, n_cores());
  auto desc = std::make_shared<ResourceDesc>();
  *desc = {Driver::instance().device(origin.device), n_sms};
  *handle = reinterpret_cast<CUdevResourceDesc>(desc.get());
  Driver::instance().resource_descs.add(std::move(desc));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc desc_handle,
                                  CUdevice ordinal, unsigned flags) {
  RETURN_IF_FAILED(enter_without_context());
  Device* const device = Driver::instance().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::shared_ptr<ResourceDesc> desc;
  if (desc_handle) {
    desc = Driver::instance().resource_descs.find(desc_handle);
  } else {  // all that there is, as on driver 580
    desc = std::make_shared<ResourceDesc>();
    *desc = {device, n_cores()};
  }
  if (!handle || !desc || desc->device != device || flags != CU_GREEN_CTX_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  Context& primary = device->context;
  RETURN_IF_FAILED(primary.sticky_error());
  auto green = std::make_shared<GreenContext>(primary, desc->n_sms);
  {
    std::lock_guard lock(device->mutex);
    ++device->n_retained;
  }
  {
    std::lock_guard lock(primary.per_thread_mutex);
    primary.greens.push_back(green);
  }
  *handle = handle_of(green.get());
  Driver::instance().green_contexts.add(std::move(green));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGreenCtxDestroy(CUgreenCtx handle) {
  std::shared_ptr<GreenContext> green;
  RETURN_IF_FAILED(find_living(handle, &green));
  if (green->destroyed.exchange(true)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Context& primary = green->primary;
  primary.drain(green.get());
  {
    std::lock_guard lock(primary.per_thread_mutex);
    std::erase(primary.greens, green);
  }
  return release_primary(primary.device);
}

SOFTWARE_GPU_API cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  std::shared_ptr<GreenContext> green;
  RETURN_IF_FAILED(find_green(handle, &green));
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  green->is_converted = true;
  *context = ContextHandle{&green->primary, green.get()}.handle();
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  RETURN_IF_FAILED(enter_without_context());
  std::shared_ptr<GreenContext> green;
  RETURN_IF_FAILED(find_green(handle ? handle : handle_of(current().green), &green));
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = green->id;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGreenCtxStreamCreate(CUstream* handle, CUgreenCtx green_handle, unsigned flags,
                                        int) {
  std::shared_ptr<GreenContext> green;
  RETURN_IF_FAILED(find_green(green_handle, &green));
  if (!handle || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  auto stream = std::make_shared<Stream>(green->primary, flags, 0, green.get());
  *handle = reinterpret_cast<CUstream>(stream.get());
  green->primary.streams.add(std::move(stream));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamGetGreenCtx(CUstream stream, CUgreenCtx* green) {
  ContextHandle owner;
  RETURN_IF_FAILED(find_owner(stream, &owner));
  if (!green) return CUDA_ERROR_INVALID_VALUE;
  *green = handle_of(owner.green);
  return CUDA_SUCCESS;
}

#undef cuStreamGetCtx
SOFTWARE_GPU_API cuStreamGetCtx(CUstream stream, CUcontext* context) {
  ContextHandle owner;
  RETURN_IF_FAILED(find_owner(stream, &owner));
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (owner.green) owner.green->is_converted = true;
  *context = owner.handle();
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  ContextHandle owner;
  RETURN_IF_FAILED(find_owner(stream, &owner));
  if (!context && !green) return CUDA_ERROR_INVALID_VALUE;
  if (context) *context = reinterpret_cast<CUcontext>(owner.context);
  if (green) *green = handle_of(owner.green);
  return CUDA_SUCCESS;
}
