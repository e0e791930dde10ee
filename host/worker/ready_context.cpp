// SPDX-License-Identifier: Apache-2.0
#include "ready_context.h"

#include <chrono>
#include <thread>
#include <utility>

#include "log.h"
#include "session.h"

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
  // Flags are set before a context is made; with one address space this one changes nothing.
  if (device == DEVICE && (flags & ~CU_CTX_MAP_HOST) == 0) {
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

void ReadyContext::drop_later(const DriverTable& driver) {
  // From cuInit to a context it takes PyTorch a few seconds, some twenty times as long in an
  // emulated VM.
  constexpr std::chrono::seconds KEPT_FOR{60};
  prepare_driver_thread(driver);
  std::this_thread::sleep_for(KEPT_FOR);
  drop(driver);
}

}  // namespace kvgpu::worker
