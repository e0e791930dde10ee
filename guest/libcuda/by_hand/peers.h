// SPDX-License-Identifier: Apache-2.0
// Copies from one device's memory to another one's.
#pragma once

#include "copies.h"

namespace kvgpu::guest {

// Are both device memory, and not of one device?
bool crosses_devices(CUdeviceptr dst, CUdeviceptr src);

// Of boxes that cross devices; both sides are linear device memory, and nothing is empty.
CUresult copy_box_between_devices(const CUDA_MEMCPY3D_PEER& p, CUstream stream, Wait wait);

}  // namespace kvgpu::guest
