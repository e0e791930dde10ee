// SPDX-License-Identifier: Apache-2.0
// A private table that tells where on the chip each TPC is: two numbers for each, which cuBLASLt
// asks for before many a matmul and cannot do without. They differ from chip to chip, so the host's
// driver is asked.
#pragma once

#include <cstdint>

#include "cuda_api.h"

namespace kvgpu::guest {

/// Whether the host's driver has the table; false before cuInit.
bool has_floor_plan();
/// Two arrays by malloc, of the current context's device; the caller gives them to floor_plan_free.
CUresult floor_plan_get(uint8_t** first, uint8_t** second);
CUresult floor_plan_free(uint8_t* first, uint8_t* second);

}  // namespace kvgpu::guest
