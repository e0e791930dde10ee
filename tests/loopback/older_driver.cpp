// SPDX-License-Identifier: Apache-2.0
// A libcuda of CUDA 12.4: the software GPU without the functions of later releases. What is not
// defined here the worker's dlsym finds in the software GPU, which this library needs.
#include <cuda.h>

// A symbol with the value 0: dlsym answers as if there were none.
#define ABSENT(name) asm(".globl " #name "\n.set " #name ", 0");
#include "newer_names.inc"

extern "C" CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 12040;
  return CUDA_SUCCESS;
}
