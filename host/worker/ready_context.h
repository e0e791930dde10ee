// SPDX-License-Identifier: Apache-2.0
// The primary context of a device, made before there is a session: that takes the driver 110 to
// 160 ms (one H100, driver 580). It becomes the first context that the session makes, or goes
// before that one is made, so that a program finds of the GPU what it would without it.
#pragma once

#include <cuda.h>

#include <mutex>

#include "driver.h"

namespace kvgpu::worker {

class ReadyContext {
 public:
  static constexpr int DEVICE = 0;

  // While the worker waits. Null where the driver has none to give: said in the log.
  static CUcontext make(const DriverTable& driver);
  // Of a session that has just begun.
  void hold(CUcontext context) { context_ = context; }

  // The session makes the primary context of this device, with these flags. Null: the caller is to
  // ask the driver; else the driver's reference is the caller's.
  [[nodiscard]] CUcontext take(const DriverTable& driver, int device, unsigned flags);
  // The session makes another context.
  void drop(const DriverTable& driver);
  // Returns when the session has had time to make one; a thread of its own. A program that only
  // asks for devices is to hold no memory of them.
  void drop_later(const DriverTable& driver);

 private:
  std::mutex mutex_;
  CUcontext context_ = nullptr;
};

}  // namespace kvgpu::worker
