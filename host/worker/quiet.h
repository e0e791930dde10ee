// SPDX-License-Identifier: Apache-2.0
// cuMemFree waits for the device inside the driver and keeps every other thread out of it while it
// does (one H200, driver 580). So the work that it would wait for is waited for out here first.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "driver.h"

namespace kvgpu::worker {

class Session;
struct Context;  // handles.h

class Quiet {
 public:
  // The executor of the device: what the driver has been given so far.
  Quiet(Session& session, int device);
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  ~Quiet();

  // Any thread.
  void wait();

 private:
  struct Behind {
    std::shared_ptr<Context> context;
    CUevent event;
  };
  const DriverTable& driver_;
  std::vector<Behind> events_;
};

}  // namespace kvgpu::worker
