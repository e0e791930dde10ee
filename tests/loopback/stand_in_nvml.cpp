// SPDX-License-Identifier: Apache-2.0
// An NVML for the software GPU, as far as kvgpu-worker --telemetry asks: every kvgpu-worker of this
// machine has 700 MiB and 30 %, and process 1, which is nobody's, much more. Of two devices each
// has links to a switch that is not in sight, one to the other device, and one that is down.
#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

namespace {

constexpr char UUID[] = "GPU-6b766770-752d-736f-6674-776172650000";  // of its first device
constexpr unsigned STRANGER = 1;

std::vector<unsigned> processes() {
  std::vector<unsigned> found{STRANGER};
  DIR* const proc = opendir("/proc");
  while (const dirent* const entry = readdir(proc)) {
    std::string name;
    std::ifstream(std::string("/proc/") + entry->d_name + "/comm") >> name;
    const int pid = std::atoi(entry->d_name);
    if (pid > 1 && name == "kvgpu-worker") found.push_back(static_cast<unsigned>(pid));
  }
  closedir(proc);
  return found;
}

unsigned n_devices() {
  const char* const n = std::getenv("KVGPU_SOFTWARE_GPU_DEVICES");
  return n == nullptr ? 1 : static_cast<unsigned>(std::atoi(n));
}

// A handle is the device's number + 1.
nvmlDevice_t handle(unsigned device) { return reinterpret_cast<nvmlDevice_t>(device + 1ul); }
unsigned number(nvmlDevice_t device) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(device)) - 1;
}

constexpr unsigned ACTIVE = NVML_NVLINK_STATE_ACTIVE, SLEEP = NVML_NVLINK_STATE_SLEEP;
enum Link : unsigned { TO_SWITCH, ALSO_TO_SWITCH, TO_DEVICE, DOWN, N_LINKS };

nvmlReturn_t check(unsigned link) {
  return link < N_LINKS && n_devices() > 1 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t text(const char* value, char* out, unsigned length) {
  std::strncpy(out, value, length);
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlInit_v2() {
  if (std::getenv("STAND_IN_NVML_HANGS") != nullptr) pause();
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return text("580.1.2", version, length);
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  *count = n_devices();
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  *device = handle(index);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device) {
  if (std::strncmp(bus_id, "device ", 7) != 0) return NVML_ERROR_NOT_FOUND;
  *device = handle(static_cast<unsigned>(std::atoi(bus_id + 7)));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  text(UUID, uuid, length);
  uuid[sizeof UUID - 2] = static_cast<char>('0' + number(device));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t, unsigned link,
                                           nvmlNvLinkCapability_t capability, unsigned* has) {
  *has = capability == NVML_NVLINK_CAP_P2P_SUPPORTED || capability == NVML_NVLINK_CAP_VALID;
  return check(link);
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t, unsigned link, nvmlEnableState_t* state) {
  *state = link == DOWN ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
  return check(link);
}
nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t, unsigned link, unsigned* version) {
  *version = NVML_NVLINK_VERSION_4_0;
  return check(link);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t, unsigned link,
                                                 nvmlIntNvLinkDeviceType_t* kind) {
  *kind = link == TO_DEVICE ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
  return check(link);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                 nvmlPciInfo_t* pci) {
  *pci = {};
  text("a switch", pci->busId, sizeof pci->busId);
  if (link == TO_DEVICE) text(number(device) == 0 ? "device 1" : "device 0", pci->busId, 9);
  return check(link);
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int n, nvmlFieldValue_t* values) {
  for (nvmlFieldValue_t* value = values; value != values + n; ++value) {
    const bool is_speed = value->fieldId == NVML_FI_DEV_NVLINK_GET_SPEED;
    const bool is_state = value->fieldId == NVML_FI_DEV_NVLINK_GET_STATE;
    value->value.uiVal = is_speed ? 26562 : value->scopeId == ALSO_TO_SWITCH ? SLEEP : ACTIVE;
    if (value->scopeId == DOWN) value->value.uiVal = 0;
    value->nvmlReturn = is_speed || is_state ? check(value->scopeId) : NVML_ERROR_NOT_SUPPORTED;
  }
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t index,
                                    nvmlGpuP2PStatus_t* status) {
  *status =
      index == NVML_P2P_CAPS_INDEX_PCI ? NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t, nvmlDevice_t,
                                                 nvmlGpuTopologyLevel_t* level) {
  *level = NVML_TOPOLOGY_NODE;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t, nvmlBrandType_t* brand) {
  *brand = NVML_BRAND_NVIDIA;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t, nvmlDeviceArchitecture_t* architecture) {
  *architecture = NVML_DEVICE_ARCH_HOPPER;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t, nvmlTemperatureSensors_t, unsigned* celsius) {
  *celsius = 41;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t, unsigned* milliwatts) {
  *milliwatts = 123456;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t, nvmlClockType_t type, unsigned* mhz) {
  *mhz = 1000 + type;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t, unsigned long long* reasons) {
  *reasons = 1ull << 40;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned* n,
                                                     nvmlProcessInfo_t* infos) {
  *n = 0;
  for (const unsigned pid : processes()) {
    infos[(*n)++] = {pid, (pid == STRANGER ? 70000ull : 700ull) << 20, ~0u, ~0u};
  }
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t, nvmlProcessUtilizationSample_t* samples,
                                             unsigned* n, unsigned long long) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  *n = 0;
  for (const unsigned pid : processes()) {
    const unsigned percent = pid == STRANGER ? 60 : 30;
    samples[(*n)++] = {pid, static_cast<unsigned long long>(now_us), percent, percent / 3, 0, 0};
  }
  return NVML_SUCCESS;
}
