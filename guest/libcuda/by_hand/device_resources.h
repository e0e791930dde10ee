// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cuda_api.h"
#include "kvgpu/context_calls.h"
#include "kvgpu/ring.h"
#include "objects.h"

namespace kvgpu::guest {

// What a CUdevResourceDesc stands for.
using DeviceResources = std::vector<wire::DevResource>;
const DeviceResources* find(CUdevResourceDesc handle);  // null: it is none

// Of a context or a green context.
CUresult query_resource(const Context& context, CUdevResource* resource, CUdevResourceType type);

inline Part part_of(const DeviceResources& resources) {
  return {resources.data(), static_cast<uint32_t>(resources.size() * sizeof(wire::DevResource))};
}

}  // namespace kvgpu::guest
