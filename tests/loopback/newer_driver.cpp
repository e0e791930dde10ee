// SPDX-License-Identifier: Apache-2.0
// A libcuda of a release to come: the software GPU under a higher version. What is not defined here
// the worker's dlsym finds in the software GPU, which this library needs.
#include <cuda.h>

extern "C" CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 13020;
  return CUDA_SUCCESS;
}
