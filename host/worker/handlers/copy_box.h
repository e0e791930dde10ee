// SPDX-License-Identifier: Apache-2.0
// Copies of boxes, between the wire and the driver.
#pragma once

#include "kvgpu/graph_calls.h"
#include "session.h"

namespace kvgpu::worker {

// False: a side is not the guest's memory, and no array of its. What of an array the copy touches
// the driver checks.
[[nodiscard]] bool read_box(const Session& session, const wire::MemcpyNode& box,
                            CUDA_MEMCPY3D* copy);
wire::MemcpyNode describe_box(const Session& session, const CUDA_MEMCPY3D& copy);

}  // namespace kvgpu::worker
