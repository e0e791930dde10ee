// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_api.h"
#include "kvgpu/calls.h"
#include "objects.h"

namespace kvgpu::guest {

struct Attributes {
  wire::LaunchAttribute list[32];
  uint32_t n = 0;
};

// Those of a launch; refuses what names events, nodes or pointers of the process.
CUresult gather_attributes(const CUlaunchConfig& config, Attributes* attributes);

// More does not fit into a record with attributes.
inline constexpr uint32_t MAX_INLINE_PARAM_BYTES = 12 * 1024;

// Lays the parameters out as the kernel wants them. `buffer`: wire::MAX_PARAM_BYTES; `bytes` is set
// to what was filled. LAUNCH_OUT_OF_RESOURCES: more is given than any kernel takes.
CUresult gather_params(const Function& function, void** kernel_params, void** extra,
                       std::byte* buffer, uint32_t* bytes);

}  // namespace kvgpu::guest
