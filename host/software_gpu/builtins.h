// SPDX-License-Identifier: Apache-2.0
// Functions that the driver provides to kernels, and numbers shared by decoder and interpreter.
#pragma once

#include "block.h"

namespace software_gpu {

enum BarrierMode : uint8_t { BARRIER_SYNC, BARRIER_ARRIVE, BARRIER_POPC, BARRIER_AND, BARRIER_OR };

void run_builtin(Block& block, const Instruction& in, const Call& call, const Lanes& lanes);

}  // namespace software_gpu
