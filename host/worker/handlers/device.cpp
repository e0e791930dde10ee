// SPDX-License-Identifier: Apache-2.0
// What is asked of devices beside their attributes, which came with the session.
#include <array>
#include <cstring>

#include "generated/handlers.gen.h"
#include "kvgpu/context_calls.h"

namespace kvgpu::worker {

CUresult device_get_host_atomic_capabilities(Session& session, const Task& task,
                                             ReplyWriter& reply) {
  wire::AtomicCapabilities body;
  if (!task.read(&body)) session.violation(task);
  const auto rest = task.after<wire::AtomicCapabilities>();
  if (body.n > wire::MAX_ATOMIC_OPERATIONS || rest.size() < body.n * sizeof(uint32_t)) {
    session.violation(task);
  }
  std::array<CUatomicOperation, wire::MAX_ATOMIC_OPERATIONS> operations{};
  static_assert(sizeof operations[0] == sizeof(uint32_t));
  if (body.n != 0) std::memcpy(operations.data(), rest.data(), body.n * sizeof(uint32_t));
  std::array<unsigned, wire::MAX_ATOMIC_OPERATIONS> capabilities{};
  const CUresult result = session.driver->cuDeviceGetHostAtomicCapabilities(
      capabilities.data(), operations.data(), body.n, static_cast<CUdevice>(body.device));
  reply.put_bytes(capabilities.data(), body.n * sizeof capabilities[0]);
  return result;
}

}  // namespace kvgpu::worker
