// SPDX-License-Identifier: Apache-2.0
#include "telemetry.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "host_nvml.h"
#include "kvgpu/device_report.h"
#include "telemetry_links.h"

namespace kvgpu::worker {

namespace {

using control::Reading;

// nvmlReturn_t function(nvmlDevice_t, T*), where T is 32 bits wide: an enumeration or a number.
struct Getter {
  Reading reading;
  const char* function;
};
constexpr Getter GETTERS[] = {
    {Reading::POWER_MW, "nvmlDeviceGetPowerUsage"},
    {Reading::POWER_LIMIT_MW, "nvmlDeviceGetPowerManagementLimit"},
    {Reading::DEFAULT_POWER_LIMIT_MW, "nvmlDeviceGetPowerManagementDefaultLimit"},
    {Reading::ENFORCED_POWER_LIMIT_MW, "nvmlDeviceGetEnforcedPowerLimit"},
    {Reading::PERFORMANCE_STATE, "nvmlDeviceGetPerformanceState"},
    {Reading::FAN_PERCENT, "nvmlDeviceGetFanSpeed"},
    {Reading::BRAND, "nvmlDeviceGetBrand"},
    {Reading::ARCHITECTURE, "nvmlDeviceGetArchitecture"},
    {Reading::PERSISTENCE_MODE, "nvmlDeviceGetPersistenceMode"},
    {Reading::PCIE_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration"},
    {Reading::MAX_PCIE_GENERATION, "nvmlDeviceGetMaxPcieLinkGeneration"},
    {Reading::DEVICE_MAX_PCIE_GENERATION, "nvmlDeviceGetGpuMaxPcieLinkGeneration"},
    {Reading::PCIE_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth"},
    {Reading::MAX_PCIE_WIDTH, "nvmlDeviceGetMaxPcieLinkWidth"},
    {Reading::MEMORY_BUS_BITS, "nvmlDeviceGetMemoryBusWidth"},
    {Reading::N_CORES, "nvmlDeviceGetNumGpuCores"},
};

// The same with a number before the pointer: one reading for each from 0 to n - 1.
struct IndexedGetter {
  Reading first;
  const char* function;
  unsigned n;
};
constexpr IndexedGetter INDEXED_GETTERS[] = {
    {Reading::TEMPERATURE_C, "nvmlDeviceGetTemperature", 1},
    {Reading::CLOCK_MHZ, "nvmlDeviceGetClockInfo", NVML_CLOCK_COUNT},
    {Reading::MAX_CLOCK_MHZ, "nvmlDeviceGetMaxClockInfo", NVML_CLOCK_COUNT},
    {Reading::TEMPERATURE_THRESHOLD_C, "nvmlDeviceGetTemperatureThreshold", 8},
};

class Printer {
 public:
  void reading(Reading reading, uint64_t value) {
    text_ += separator_ + "[" + std::to_string(static_cast<uint32_t>(reading)) + ", " +
             std::to_string(value) + "]";
    separator_ = ", ";
  }
  std::string take() { return "[" + text_ + "]"; }

 private:
  std::string text_, separator_;
};

std::string readings_of(const Nvml& nvml, nvmlDevice_t device) {
  Printer out;
  unsigned a = 0, b = 0;
  unsigned long long wide = 0;
  for (const auto& [reading, function] : GETTERS) {
    if (nvml.call(function, device, &a) == NVML_SUCCESS) out.reading(reading, a);
  }
  for (const auto& [first, function, n] : INDEXED_GETTERS) {
    for (unsigned i = 0; i < n; ++i) {
      if (nvml.call(function, device, i, &a) != NVML_SUCCESS) continue;
      out.reading(static_cast<Reading>(static_cast<uint32_t>(first) + i), a);
    }
  }
  if (nvml.call("nvmlDeviceGetPowerManagementLimitConstraints", device, &a, &b) == NVML_SUCCESS) {
    out.reading(Reading::MIN_POWER_LIMIT_MW, a);
    out.reading(Reading::MAX_POWER_LIMIT_MW, b);
  }
  if (nvml.call("nvmlDeviceGetEccMode", device, &a, &b) == NVML_SUCCESS) {
    out.reading(Reading::ECC_MODE, a);
    out.reading(Reading::PENDING_ECC_MODE, b);
  }
  if (nvml.call("nvmlDeviceGetCurrentClocksEventReasons", device, &wide) == NVML_SUCCESS) {
    out.reading(Reading::CLOCK_REASONS, wide);
  }
  if (nvml.call("nvmlDeviceGetSupportedClocksEventReasons", device, &wide) == NVML_SUCCESS) {
    out.reading(Reading::SUPPORTED_CLOCK_REASONS, wide);
  }
  nvmlFieldValue_t field{};
  field.fieldId = NVML_FI_DEV_MEMORY_TEMP;
  if (nvml.call("nvmlDeviceGetFieldValues", device, 1, &field) == NVML_SUCCESS &&
      field.nvmlReturn == NVML_SUCCESS) {
    out.reading(Reading::MEMORY_TEMPERATURE_C, field.value.uiVal);
  }
  nvmlPciInfo_t pci{};
  if (nvml.call("nvmlDeviceGetPciInfo_v3", device, &pci) == NVML_SUCCESS) {
    out.reading(Reading::PCI_DEVICE_ID, pci.pciDeviceId);
    out.reading(Reading::PCI_SUBSYSTEM_ID, pci.pciSubSystemId);
  }
  return out.take();
}

// [[pid, bytes], ...] of all processes with a context: kvgpud takes those that are its workers.
std::string processes_of(const Nvml& nvml, nvmlDevice_t device) {
  std::vector<nvmlProcessInfo_t> processes(1024);
  auto n = static_cast<unsigned>(processes.size());
  if (nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", device, &n, processes.data()) !=
      NVML_SUCCESS) {
    return "null";
  }
  std::string text, separator;
  for (unsigned i = 0; i < n; ++i) {
    if (processes[i].usedGpuMemory == control::BYTES_UNKNOWN) continue;
    text += separator + "[" + std::to_string(processes[i].pid) + ", " +
            std::to_string(processes[i].usedGpuMemory) + "]";
    separator = ", ";
  }
  return "[" + text + "]";
}

// [[pid, percent of the processors, percent of the memory's time], ...] of the last seconds, the
// newest last; null: the device does not say.
std::string utilisation_of(const Nvml& nvml, nvmlDevice_t device) {
  constexpr std::chrono::microseconds RECENT = std::chrono::seconds(2);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto since = static_cast<unsigned long long>(
      (std::chrono::duration_cast<std::chrono::microseconds>(now) - RECENT).count());
  std::vector<nvmlProcessUtilizationSample_t> samples(1024);
  auto n = static_cast<unsigned>(samples.size());
  const nvmlReturn_t result =
      nvml.call("nvmlDeviceGetProcessUtilization", device, samples.data(), &n, since);
  if (result == NVML_ERROR_NOT_FOUND) return "[]";  // nobody has computed
  if (result != NVML_SUCCESS) return "null";
  std::string text, separator;
  for (unsigned i = 0; i < n; ++i) {
    if (samples[i].timeStamp < since) continue;  // of a process that has been quiet meanwhile
    text += separator + "[" + std::to_string(samples[i].pid) + ", " +
            std::to_string(samples[i].smUtil) + ", " + std::to_string(samples[i].memUtil) + "]";
    separator = ", ";
  }
  return "[" + text + "]";
}

std::string describe(const Nvml& nvml, TelemetryLinks& links, nvmlDevice_t device) {
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE]{};
  if (nvml.call("nvmlDeviceGetUUID", device, uuid, unsigned{sizeof uuid}) != NVML_SUCCESS)
    return {};
  return std::string("{\"uuid\": \"") + uuid + "\", \"readings\": " + readings_of(nvml, device) +
         ", \"processes\": " + processes_of(nvml, device) +
         ", \"utilisation\": " + utilisation_of(nvml, device) + ", " + links.of(device) + "}";
}

std::string sample(const Nvml& nvml, TelemetryLinks& links) {
  char release[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE]{};
  (void)nvml.call("nvmlSystemGetDriverVersion", release, unsigned{sizeof release});
  unsigned n_devices = 0;
  (void)nvml.call("nvmlDeviceGetCount_v2", &n_devices);
  std::string text = std::string("{\"driver_release\": \"") + release + "\", \"devices\": [";
  const char* separator = "";
  for (unsigned i = 0; i < n_devices; ++i) {
    nvmlDevice_t device = nullptr;
    if (nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &device) != NVML_SUCCESS) continue;
    const std::string described = describe(nvml, links, device);
    if (described.empty()) continue;
    text += separator + described;
    separator = ", ";
  }
  return text + "]}";
}

}  // namespace

int print_telemetry(const std::string& driver_path) {
  const std::string path = driver_path.substr(0, driver_path.rfind('/') + 1) + "libnvidia-ml.so.1";
  Nvml nvml;
  if (!nvml.load(path)) {
    const char* const why = dlerror();
    std::fprintf(stderr, "kvgpu-worker: %s\n", why != nullptr ? why : path.c_str());
    return 1;
  }
  if (const nvmlReturn_t bad = nvml.call("nvmlInit_v2")) {
    std::fprintf(stderr, "kvgpu-worker: %s answers nvmlInit with %d\n", path.c_str(), bad);
    return 1;
  }
  TelemetryLinks links(nvml);
  char line[16];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    std::printf("%s\n", sample(nvml, links).c_str());
    (void)std::fflush(stdout);
  }
  return 0;
}

}  // namespace kvgpu::worker
