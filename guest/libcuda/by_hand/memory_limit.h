// SPDX-License-Identifier: Apache-2.0
// The program's own limit, memory_mib of its settings: what it may allocate on each device.
#pragma once

#include <mutex>

#include "call.h"

namespace kvgpu::guest {

// Held from before an allocation until it is in the memory map, or among the arrays. Costs a look
// where there is no limit.
class Allowance {
 public:
  Allowance(const Call& call, uint64_t bytes) : Allowance(call.device(), bytes) {}
  Allowance(int device, uint64_t bytes);
  CUresult status() const { return status_; }

 private:
  std::unique_lock<std::mutex> lock_;
  CUresult status_ = CUDA_SUCCESS;
};

}  // namespace kvgpu::guest
