// SPDX-License-Identifier: Apache-2.0
// What the loaded driver has, as the guest may see it.
#pragma once

#include <vector>

#include "driver.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

[[nodiscard]] CUresult list_devices(const DriverTable& driver,
                                    std::vector<wire::DeviceInfo>* devices);

// One JSON object on standard output; the exit status of `kvgpu-worker --inventory`.
int print_inventory(const DriverTable& driver);

}  // namespace kvgpu::worker
