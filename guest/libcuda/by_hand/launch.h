// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_api.h"
#include "kvgpu/calls.h"

namespace kvgpu::guest {

struct Attributes {
  wire::LaunchAttribute list[32];
  uint32_t n = 0;
};

// Those of a launch; refuses what names events, nodes or pointers of the process.
CUresult gather_attributes(const CUlaunchConfig& config, Attributes* attributes);

}  // namespace kvgpu::guest
