// SPDX-License-Identifier: Apache-2.0
// Device resources. What is in them is the driver's; the worker takes back only what it has given.
#include "device_resources.h"

#include <cstring>

#include "call.h"
#include "generated/api.gen.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

static_assert(sizeof(CUdevResource) == sizeof(wire::DevResource));

CUdevResource from_bytes(const wire::DevResource& resource) {
  CUdevResource out;
  std::memcpy(&out, &resource, sizeof out);
  return out;
}

CUresult query(wire::Handle context, int device, CUdevResource* out, CUdevResourceType type) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const wire::GetDevResource body{context, static_cast<uint32_t>(device),
                                  static_cast<uint32_t>(type)};
  wire::DevResource found;
  ReplyBuffer reply{&found, sizeof found};
  Session& session = Session::get();
  const CUresult result =
      session.call(wire::Op::cuDeviceGetDevResource, device, &reply, part(body));
  if (result == CUDA_SUCCESS) *out = from_bytes(found);
  return result;
}

// Descriptors are never given back, as the driver's are not.
std::mutex descs_mutex;
auto& descs = *new std::set<const DeviceResources*>;

}  // namespace

const DeviceResources* find(CUdevResourceDesc handle) {
  const auto* const desc = reinterpret_cast<const DeviceResources*>(handle);
  const std::lock_guard lock(descs_mutex);
  return descs.contains(desc) ? desc : nullptr;
}

CUresult query_resource(const Context& context, CUdevResource* resource, CUdevResourceType type) {
  if (!context.active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return query(context.handle, context.device, resource, type);
}

CUresult device_get_dev_resource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  if (const CUresult bad = Session::get().pending_error()) return bad;
  if (Session::get().find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return query(0, device, resource, type);
}

CUresult ctx_get_dev_resource(CUcontext hCtx, CUdevResource* resource, CUdevResourceType type) {
  if (const CUresult bad = Session::get().pending_error()) return bad;
  const Context* const context = find_itself(hCtx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return query_resource(*context, resource, type);
}

CUresult dev_sm_resource_split_by_count(CUdevResource* result, unsigned int* nbGroups,
                                        const CUdevResource* input, CUdevResource* remaining,
                                        unsigned int useFlags, unsigned int minCount) {
  if (const CUresult bad = Session::get().pending_error()) return bad;
  if (nbGroups == nullptr || input == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  wire::SplitDevResource body{{}, *nbGroups, useFlags, minCount, result != nullptr};
  std::memcpy(&body.input, input, sizeof body.input);
  struct {
    wire::DevResourceSplit head;
    wire::DevResource groups[wire::MAX_DEV_RESOURCES];
  } out{};
  ReplyBuffer reply{&out, sizeof out};
  const CUresult bad =
      Session::get().call(wire::Op::cuDevSmResourceSplitByCount, 0, &reply, part(body));
  if (bad != CUDA_SUCCESS) return bad;
  for (uint32_t i = 0; i < out.head.n_given && i < wire::MAX_DEV_RESOURCES; ++i) {
    result[i] = from_bytes(out.groups[i]);
  }
  if (remaining != nullptr) *remaining = from_bytes(out.head.remaining);
  *nbGroups = out.head.n_groups;
  return CUDA_SUCCESS;
}

CUresult dev_resource_generate_desc(CUdevResourceDesc* phDesc, CUdevResource* resources,
                                    unsigned int nbResources) {
  if (const CUresult bad = Session::get().pending_error()) return bad;
  if (phDesc == nullptr || resources == nullptr || nbResources == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (nbResources > wire::MAX_DEV_RESOURCES) {
    return static_cast<CUresult>(refuse_part("a descriptor of more than 100 resources"));
  }
  auto desc = std::make_unique<DeviceResources>(nbResources);
  for (unsigned i = 0; i < nbResources; ++i) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    std::memcpy(&(*desc)[i], &resources[i], sizeof resources[i]);
  }
  const wire::DescribeDevResources body{nbResources, 0};
  const CUresult bad = Session::get().call(wire::Op::cuDevResourceGenerateDesc, 0, nullptr,
                                           part(body), part_of(*desc));
  if (bad != CUDA_SUCCESS) return bad;
  const std::lock_guard lock(descs_mutex);
  *phDesc = reinterpret_cast<CUdevResourceDesc>(desc.get());
  descs.insert(desc.release());
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
