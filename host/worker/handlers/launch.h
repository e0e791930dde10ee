// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvgpu/calls.h"
#include "session.h"

namespace kvgpu::worker {

// `params`: b.param_bytes, laid out as the kernel wants them.
[[gnu::always_inline]] inline CUresult call_launch(const Session& session, const wire::Launch& b,
                                                   CUfunction function, CUstream stream,
                                                   const std::byte* params) {
  size_t param_bytes = b.param_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(params),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &param_bytes, CU_LAUNCH_PARAM_END};
  return session.driver->cuLaunchKernel(function, b.grid[0], b.grid[1], b.grid[2], b.block[0],
                                        b.block[1], b.block[2], b.shared_bytes, stream, nullptr,
                                        param_bytes == 0 ? nullptr : extra);
}

}  // namespace kvgpu::worker
