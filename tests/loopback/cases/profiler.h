// SPDX-License-Identifier: Apache-2.0
// Of cudaProfiler.h, which does not come with cuda.h everywhere.
#pragma once

#include <cuda.h>

extern "C" CUresult cuProfilerStart();
extern "C" CUresult cuProfilerStop();
