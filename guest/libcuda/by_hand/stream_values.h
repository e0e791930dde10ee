// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_api.h"

namespace kvgpu::guest {

// Operations of a batch, as cuStreamBatchMemOp and graph nodes take them.
CUresult check_batch(const CUstreamBatchMemOpParams* params, unsigned n, unsigned flags);

}  // namespace kvgpu::guest
