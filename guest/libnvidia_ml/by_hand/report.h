// SPDX-License-Identifier: Apache-2.0
// Asks the agent (or kvgpud) what it knows of a device: PROTOCOL.md §4, DEVICE_QUERY. No session is
// made for that, and nothing on the GPU. Trusts no length in the answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvgpu/device_report.h"
#include "nvml_api.h"

namespace kvgpu::nvml {

struct Report {
  control::DeviceReport head;
  std::vector<control::DeviceProcess> processes;
  std::vector<control::DeviceReading> readings;

  std::optional<uint64_t> find(control::Reading reading) const;
};

// A connection for each question, so that threads and forks need nothing of one another. Logs what
// is wrong, and what to do.
[[nodiscard]] nvmlReturn_t ask(unsigned device, std::chrono::milliseconds limit, Report* report);

}  // namespace kvgpu::nvml
