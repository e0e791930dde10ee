// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory_map.h"

namespace kvgpu::guest {

// Host memory that is no longer in the memory map, and that no work uses any more.
void give_back(const MemoryRange& range);

}  // namespace kvgpu::guest
