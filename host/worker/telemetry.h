// SPDX-License-Identifier: Apache-2.0
// `kvgpu-worker --telemetry`: what the host's NVML says of its devices, for kvgpud. A process of
// its own, since NVML hangs where the driver does.
#pragma once

#include <string>

namespace kvgpu::worker {

// For each line on standard input one JSON object on standard output, until there are no more.
// Loads the libnvidia-ml.so.1 beside `driver_path`: the one of the same driver. Returns the exit
// status.
int print_telemetry(const std::string& driver_path);

}  // namespace kvgpu::worker
