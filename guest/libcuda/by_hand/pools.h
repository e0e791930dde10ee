// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_api.h"
#include "kvgpu/records.h"

namespace kvgpu::guest {

// Is it device memory of the session's, which is all that there is?
CUresult check_location(const CUmemLocation* location, CUmemAllocationType type);

// The pool that cuMemAllocAsync takes from; 0: the default one, which nobody has asked for yet.
wire::Handle current_pool(int device);

}  // namespace kvgpu::guest
