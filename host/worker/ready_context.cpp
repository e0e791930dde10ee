// SPDX-License-Identifier: Apache-2.0
#include "ready_context.h"

#include <utility>

#include "log.h"

namespace kvgpu::worker {

CUcontext ReadyContext::make(const DriverTable& driver) {
  CUdevice device;
  CUcontext context = nullptr;
  CUresult result = driver.cuDeviceGet(&device, DEVICE);
  if (result == CUDA_SUCCESS) result = driver.cuDevicePrimaryCtxRetain(&context, device);
  if (result == CUDA_SUCCESS) return context;
  log("no context for the next session: %s", error_name(driver, result).c_str());
  return nullptr;
}

CUcontext ReadyContext::take(const DriverTable& driver, int device, unsigned flags) {
  if (device == DEVICE && flags == 0) {  // flags are set before a context is made
    const std::lock_guard lock(mutex_);
    return std::exchange(context_, nullptr);
  }
  drop(driver);
  return nullptr;
}

void ReadyContext::drop(const DriverTable& driver) {
  const std::lock_guard lock(mutex_);
  CUdevice device;
  if (std::exchange(context_, nullptr) != nullptr &&
      driver.cuDeviceGet(&device, DEVICE) == CUDA_SUCCESS) {
    (void)driver.cuDevicePrimaryCtxRelease_v2(device);
  }
}

}  // namespace kvgpu::worker
