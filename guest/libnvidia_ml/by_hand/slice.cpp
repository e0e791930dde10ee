// SPDX-License-Identifier: Apache-2.0
// What is true of every slice: no display, no MIG, no events.
#include <time.h>

#include "answers.h"

using namespace kvgpu::nvml;

struct nvmlEventSet_st {
  char unused;
};

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return answer(device, mode, NVML_COMPUTEMODE_DEFAULT);
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* display) {
  return answer(device, display, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* isActive) {
  return answer(device, isActive, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device,
                                             nvmlGpuVirtualizationMode_t* pVirtualMode) {
  return answer(device, pVirtualMode, NVML_GPU_VIRTUALIZATION_MODE_NONE);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* isMigDevice) {
  return answer(device, isMigDevice, 0);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return answer(device, count, 0);
}

// nvidia-smi wants a set; no device has events for it.
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *set = new nvmlEventSet_st{};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  delete set;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data,
                                 unsigned int timeoutms) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (set == nullptr || data == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  timespec left{static_cast<time_t>(timeoutms / 1000),
                static_cast<long>(timeoutms % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0) continue;
  return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeoutms) {
  return nvmlEventSetWait_v2(set, data, timeoutms);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* eventTypes) {
  return answer(device, eventTypes, 0);
}
