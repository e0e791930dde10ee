// SPDX-License-Identifier: Apache-2.0
// Memory, processes, utilisation: the asker's own, never another's.
#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "answers.h"

using namespace kvgpu::nvml;
using kvgpu::control::DeviceProcess;
using kvgpu::control::PERCENT_UNKNOWN;

namespace {

constexpr unsigned NO_INSTANCE = 0xffffffff;  // of MIG

nvmlReturn_t fresh_report(nvmlDevice_t device, std::shared_ptr<const Report>* report) {
  return Library::get().report(device, Freshness::NOW, report);
}

template <typename Info>
nvmlReturn_t list_processes(nvmlDevice_t device, unsigned* count, Info* infos) {
  if (count == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = fresh_report(device, &report)) return bad;
  const auto n = static_cast<unsigned>(report->processes.size());
  const unsigned room = std::exchange(*count, n);
  if (n == 0) return NVML_SUCCESS;
  if (room < n) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (infos == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < n; ++i) {
    infos[i] = {};
    infos[i].pid = report->processes[i].pid;
    infos[i].usedGpuMemory = report->processes[i].used_bytes;
    if constexpr (!std::is_same_v<Info, nvmlProcessInfo_v1_t>) {
      infos[i].gpuInstanceId = NO_INSTANCE;
      infos[i].computeInstanceId = NO_INSTANCE;
    }
  }
  return NVML_SUCCESS;
}

// A slice computes; it has no display, and MPS is the host's.
nvmlReturn_t no_processes(nvmlDevice_t device, unsigned* count) { return answer(device, count, 0); }

}  // namespace

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (memory == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = fresh_report(device, &report)) return bad;
  const MemoryView view = memory_of(*report);
  memory->total = view.total_bytes;
  memory->free = view.free_bytes;
  memory->used = view.total_bytes - view.free_bytes;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (memory == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  // Not ARGUMENT_VERSION_MISMATCH: so an H200's driver 580.
  if (memory->version != nvmlMemory_v2) return refuse(device, NVML_ERROR_FUNCTION_NOT_FOUND);
  nvmlMemory_t plain{};
  if (const nvmlReturn_t bad = nvmlDeviceGetMemoryInfo(device, &plain)) return bad;
  memory->total = plain.total;
  memory->reserved = 0;  // what the driver keeps is no part of the slice
  memory->free = plain.free;
  memory->used = plain.used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_t* infos) {
  return list_processes(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_v2_t* infos) {
  return list_processes(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                  nvmlProcessInfo_v1_t* infos) {
  return list_processes(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                      nvmlProcessInfo_t*) {
  return no_processes(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                      nvmlProcessInfo_v2_t*) {
  return no_processes(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                   nvmlProcessInfo_v1_t*) {
  return no_processes(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
                                                        unsigned int* infoCount,
                                                        nvmlProcessInfo_t*) {
  return no_processes(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device,
                                                        unsigned int* infoCount,
                                                        nvmlProcessInfo_v2_t*) {
  return no_processes(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_v1_t*) {
  return no_processes(device, infoCount);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  if (utilization == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  using kvgpu::control::Reading;
  nvmlUtilization_t found{};
  if (const nvmlReturn_t bad = read(device, Reading::GPU_PERCENT, &found.gpu)) return bad;
  if (const nvmlReturn_t bad = read(device, Reading::MEMORY_PERCENT, &found.memory)) return bad;
  *utilization = found;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t* utilization,
                                             unsigned int* processSamplesCount,
                                             unsigned long long lastSeenTimeStamp) {
  if (processSamplesCount == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = Library::get().report(device, Freshness::RECENT, &report))
    return bad;
  if (!report->find(kvgpu::control::Reading::GPU_PERCENT)) return NVML_ERROR_NOT_SUPPORTED;
  const auto is_known = [](const DeviceProcess& process) {
    return process.gpu_percent != PERCENT_UNKNOWN;
  };
  const auto n = static_cast<unsigned>(std::ranges::count_if(report->processes, is_known));
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  const auto now_us = static_cast<unsigned long long>(
      std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count());
  if (n == 0 || lastSeenTimeStamp >= now_us) return NVML_ERROR_NOT_FOUND;
  const unsigned room = std::exchange(*processSamplesCount, n);
  if (room < n || utilization == nullptr) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (const DeviceProcess& process : report->processes) {
    if (!is_known(process)) continue;
    *utilization++ = {process.pid, now_us, process.gpu_percent, process.memory_percent, 0, 0};
  }
  return NVML_SUCCESS;
}
