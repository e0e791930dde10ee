// SPDX-License-Identifier: Apache-2.0
// Managed memory that goes with its scope.
#pragma once

#include "virtual_memory.h"

struct Managed {
  explicit Managed(size_t bytes, unsigned flags = CU_MEM_ATTACH_GLOBAL) {
    CU(cuMemAllocManaged(&at, bytes, flags));
  }
  ~Managed() { cuMemFree(at); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  int* ints() const { return reinterpret_cast<int*>(at); }
  CUdeviceptr at = 0;
};
