// SPDX-License-Identifier: Apache-2.0
// An NVML for the software GPU, as far as kvgpu-worker --telemetry asks: every kvgpu-worker of this
// machine has 700 MiB and 30 %, and process 1, which is nobody's, much more.
#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

namespace {

constexpr char UUID[] = "GPU-6b766770-752d-736f-6674-776172650000";  // of the software GPU
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
  *count = 1;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t* device) {
  *device = nullptr;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char* uuid, unsigned length) {
  return text(UUID, uuid, length);
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
