// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvgpu::guest {

struct ProcAddress {
  const char* name;
  int version;      // the CUDA release from which this symbol answers
  bool per_thread;  // the twin for CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
  void* function;
};

// Sorted by name, then version. Generated from the PFN_ typedefs of CUDA 13.0.
extern const ProcAddress PROC_ADDRESSES[];
extern const size_t N_PROC_ADDRESSES;

}  // namespace kvgpu::guest
