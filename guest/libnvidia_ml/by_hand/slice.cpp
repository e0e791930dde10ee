// SPDX-License-Identifier: Apache-2.0
// What is true of every slice: no display, no MIG, no events, and neighbours only through the host.
#include <time.h>

#include "answers.h"

using namespace kvgpu::nvml;

struct nvmlEventSet_st {
  char unused;
};

namespace {

nvmlReturn_t check_two(nvmlDevice_t device1, nvmlDevice_t device2, const void* out) {
  if (const nvmlReturn_t bad = refuse(device1, NVML_SUCCESS)) return bad;
  if (const nvmlReturn_t bad = refuse(device2, NVML_SUCCESS)) return bad;
  return out == nullptr ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

}  // namespace

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

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                    nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t* p2pStatus) {
  if (const nvmlReturn_t bad = check_two(device1, device2, p2pStatus)) return bad;
  *p2pStatus = NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t* pathInfo) {
  if (const nvmlReturn_t bad = check_two(device1, device2, pathInfo)) return bad;
  *pathInfo = device1 == device2 ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_SYSTEM;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int* onSameBoard) {
  if (const nvmlReturn_t bad = check_two(device1, device2, onSameBoard)) return bad;
  *onSameBoard = device1 == device2;
  return NVML_SUCCESS;
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
