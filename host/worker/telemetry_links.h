// SPDX-License-Identifier: Apache-2.0
// What the host's NVML says of the ways between its devices: NVLinks, and access to each other's
// memory. These do not change while the driver is loaded: each device is asked once.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host_nvml.h"

namespace kvgpu::worker {

class TelemetryLinks {
 public:
  explicit TelemetryLinks(const Nvml& nvml) : nvml_(nvml) {}

  // `"link_mbps": number, "links": [[number, facts, UUID of the device at the other end], ...],
  // "peers": [[UUID, facts], ...]`: facts as in kvgpu/device_report.h, without remote_device.
  const std::string& of(nvmlDevice_t device);

 private:
  std::string describe(nvmlDevice_t device) const;
  unsigned speed(nvmlDevice_t device) const;
  std::string links(nvmlDevice_t device) const;
  std::string peers(nvmlDevice_t device) const;
  std::string uuid(nvmlDevice_t device) const;
  std::optional<unsigned> field(nvmlDevice_t device, unsigned id, unsigned scope) const;

  const Nvml& nvml_;
  std::map<nvmlDevice_t, std::string> known_;
};

}  // namespace kvgpu::worker
