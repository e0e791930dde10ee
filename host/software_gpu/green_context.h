// SPDX-License-Identifier: Apache-2.0
// Green contexts: the primary context, with streams of their own and some of the device's SMs. An
// SM is a core of the host, and any number of them makes a partition.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <vector>

#include "stream.h"

namespace software_gpu {

struct Device;

/// What CUdevResourceDesc points to.
struct ResourceDesc {
  Device* device;
  unsigned n_sms;
};

/// What CUgreenCtx points to, and the CUcontext that cuCtxFromGreenCtx makes of it. It stays in the
/// driver's table when it is destroyed, as contexts do.
struct GreenContext {
  GreenContext(Context& primary_, unsigned n_sms_);
  Context& primary;
  const unsigned n_sms;
  const uint64_t id;
  std::atomic<bool> is_converted{false}, destroyed{false};
  std::shared_ptr<Stream> legacy;  // its default stream
  std::vector<Point> gates;        // all its later work waits for; under Context::order_mutex
};

}  // namespace software_gpu
