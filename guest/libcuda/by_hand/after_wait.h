// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "freed_pools.h"
#include "managed_memory.h"

namespace kvgpu::guest {

// What is due when the program has waited for a stream, an event or a context, with this result.
inline CUresult after_wait(CUresult result) {
  if (result != CUDA_SUCCESS) return result;
  ManagedMemory::after_wait();
  return FreedPools::after_wait();
}

}  // namespace kvgpu::guest
