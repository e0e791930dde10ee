// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

namespace kvgpu::smi {

namespace {

std::string text(const Nvml& nvml, const char* function, nvmlDevice_t device) {
  char found[NVML_DEVICE_NAME_V2_BUFFER_SIZE]{};
  (void)nvml.call(function, device, found, unsigned{sizeof found});
  return found;
}

std::vector<Process> processes_of(const Nvml& nvml, nvmlDevice_t device) {
  std::vector<nvmlProcessInfo_t> infos(256);
  auto n = static_cast<unsigned>(infos.size());
  const auto bad = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", device, &n, infos.data());
  infos.resize(bad == NVML_SUCCESS ? n : 0);
  std::vector<Process> processes;
  for (const nvmlProcessInfo_t& info : infos) {
    char name[256]{};
    (void)nvml.call("nvmlSystemGetProcessName", info.pid, name, unsigned{sizeof name});
    const unsigned long long unknown = ~0ull;  // NVML_VALUE_NOT_AVAILABLE
    processes.push_back(
        {info.pid, name,
         info.usedGpuMemory == unknown ? std::nullopt : std::optional(info.usedGpuMemory)});
  }
  return processes;
}

Device describe(const Nvml& nvml, unsigned index, nvmlDevice_t handle) {
  Device device{};
  device.index = index;
  device.name = text(nvml, "nvmlDeviceGetName", handle);
  device.uuid = text(nvml, "nvmlDeviceGetUUID", handle);
  nvmlPciInfo_t pci{};
  if (nvml.call("nvmlDeviceGetPciInfo_v3", handle, &pci) == NVML_SUCCESS) {
    device.pci_bus_id = pci.busId;
  }
  nvmlMemory_t memory{};
  if (nvml.call("nvmlDeviceGetMemoryInfo", handle, &memory) == NVML_SUCCESS) {
    device.total_bytes = memory.total;
    device.used_bytes = memory.used;
  }
  nvmlUtilization_t load{};
  if (nvml.call("nvmlDeviceGetUtilizationRates", handle, &load) == NVML_SUCCESS) {
    device.gpu_percent = load.gpu;
  }
  unsigned value = 0;
  if (nvml.call("nvmlDeviceGetTemperature", handle, unsigned{NVML_TEMPERATURE_GPU}, &value) ==
      NVML_SUCCESS) {
    device.temperature_c = value;
  }
  if (nvml.call("nvmlDeviceGetPowerUsage", handle, &value) == NVML_SUCCESS) {
    device.power_mw = value;
  }
  device.processes = processes_of(nvml, handle);
  return device;
}

}  // namespace

std::vector<Device> list_devices(const Nvml& nvml) {
  unsigned n_devices = 0;
  (void)nvml.call("nvmlDeviceGetCount_v2", &n_devices);
  std::vector<Device> devices;
  for (unsigned index = 0; index < n_devices; ++index) {
    nvmlDevice_t handle = nullptr;
    if (nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &handle) != NVML_SUCCESS) continue;
    devices.push_back(describe(nvml, index, handle));
  }
  return devices;
}

}  // namespace kvgpu::smi
