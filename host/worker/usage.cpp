// SPDX-License-Identifier: Apache-2.0
#include "usage.h"

namespace kvgpu::worker {

std::vector<control::DeviceUsage> measure_usage(Session& session) {
  std::vector<control::DeviceUsage> devices(static_cast<size_t>(session.n_devices));
  for (const auto& context : session.handles.contexts()) {
    control::DeviceUsage& usage = devices[static_cast<size_t>(context->device)];
    if (usage.total_bytes != 0) continue;
    context->while_there([&] {
      size_t free_bytes = 0, total_bytes = 0;
      if (session.enter(*context) == CUDA_SUCCESS &&
          session.driver->cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS) {
        usage.free_bytes = free_bytes;
        usage.total_bytes = total_bytes;
      }
    });
  }
  const std::vector<uint64_t> own_bytes = session.device_bytes();
  for (size_t device = 0; device < devices.size(); ++device) {
    devices[device].own_bytes = own_bytes[device];
  }
  return devices;
}

}  // namespace kvgpu::worker
