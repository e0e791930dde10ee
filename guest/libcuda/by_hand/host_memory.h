// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory_map.h"

namespace kvgpu::guest {

// Host memory that is no longer in the memory map, and that no work uses any more.
void give_back(const MemoryRange& range);

// All work that has been given to the GPU so far. `done`: nothing of it can touch host memory any
// more, whatever the result.
CUresult finish_all_work(bool* done);

}  // namespace kvgpu::guest
