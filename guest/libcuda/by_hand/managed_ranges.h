// SPDX-License-Identifier: Apache-2.0
// What the calls about ranges of managed memory have in common.
#pragma once

#include <cstddef>

#include "cuda_api.h"

namespace kvgpu::guest {

CUresult check_managed(CUdeviceptr address, size_t bytes);
// The guest's memory is one node. `no_device`: the answer where there is no such device.
CUresult check_location(const CUmemLocation& location, CUresult no_device);
bool is_host(const CUmemLocation& location);

// The calls before CUDA 13 name a device or CU_DEVICE_CPU.
CUmemLocation location_of(CUdevice device);
int device_of(const CUmemLocation& location);
int id_of(const CUmemLocation& location);

}  // namespace kvgpu::guest
