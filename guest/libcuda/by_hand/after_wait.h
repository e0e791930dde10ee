// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver_waits.h"
#include "managed_memory.h"

namespace kvgpu::guest {

// What is due when the program has waited for a stream, an event or a context, with this result.
inline CUresult after_wait(CUresult result) {
  if (result != CUDA_SUCCESS) return result;
  ManagedMemory::after_wait();
  if (const CUresult bad = DriverWaits::output().settle()) return bad;
  return DriverWaits::memory().settle();
}

}  // namespace kvgpu::guest
