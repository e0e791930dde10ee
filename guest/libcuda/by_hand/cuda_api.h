// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL  // every version of every function by its exact name
#endif
#include <cuda.h>
