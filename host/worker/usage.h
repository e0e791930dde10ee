// SPDX-License-Identifier: Apache-2.0
// What the session uses of its devices, asked by kvgpud for NVML (PROTOCOL.md §4, USAGE).
#pragma once

#include <vector>

#include "kvgpu/device_report.h"
#include "session.h"

namespace kvgpu::worker {

// Calls the driver, so it may take long; one entry for each device.
std::vector<control::DeviceUsage> measure_usage(Session& session);

}  // namespace kvgpu::worker
