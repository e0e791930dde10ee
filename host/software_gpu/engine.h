// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a launch on all cores.
#pragma once

#include <memory>

#include "block.h"

namespace software_gpu {

/// Blocks that may be resident at once, for cooperative launches and occupancy queries.
inline constexpr uint32_t MAX_BLOCKS_PER_CORE = 16;
uint32_t n_cores();

/// Run to the end or to the first fault, which is returned. Called on a stream's thread; other
/// cores help. Blocks start in ascending order.
[[nodiscard]] CUresult run_launch(const std::shared_ptr<Launch>& launch);

}  // namespace software_gpu
