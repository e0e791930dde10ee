// SPDX-License-Identifier: Apache-2.0
// What kvgpu-smi shows; empty: the device does not say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nvml.h"

namespace kvgpu::smi {

struct Process {
  unsigned pid;
  std::string name;
  std::optional<uint64_t> used_bytes;
};

struct Device {
  unsigned index;
  std::string name, uuid, pci_bus_id;
  std::optional<uint64_t> total_bytes, used_bytes;
  std::optional<unsigned> gpu_percent, temperature_c, power_mw;
  std::vector<Process> processes;
};

std::vector<Device> list_devices(const Nvml& nvml);

}  // namespace kvgpu::smi
