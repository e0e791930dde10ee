// SPDX-License-Identifier: Apache-2.0
// Kernel launches. Parameters arrive laid out as the kernel wants them and go on as one buffer.
#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

namespace {

constexpr uint32_t MAX_LAUNCH_ATTRIBUTES = 32;

struct Launch {
  wire::Launch body;
  CUfunction function;
  std::span<const std::byte> attributes;
  std::span<const std::byte> params;
};

CUresult read_launch(Session& session, const Task& task, Launch* launch) {
  if (!task.read(&launch->body)) session.violation(task);
  const wire::Launch& body = launch->body;
  const auto rest = task.after<wire::Launch>();
  const size_t attribute_bytes = body.n_attributes * sizeof(wire::LaunchAttribute);
  if (body.n_attributes > MAX_LAUNCH_ATTRIBUTES || attribute_bytes > rest.size() ||
      body.param_bytes > rest.size() - attribute_bytes) {
    session.violation(task);
  }
  launch->attributes = rest.first(attribute_bytes);
  launch->params = rest.subspan(attribute_bytes, body.param_bytes);
  return session.handles.get(body.function, &launch->function) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult launch_kernel(Session& session, const Task& task, ReplyWriter&) {
  Launch launch;
  if (const CUresult bad = read_launch(session, task, &launch)) return bad;
  const wire::Launch& b = launch.body;
  size_t param_bytes = b.param_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(launch.params.data()),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &param_bytes, CU_LAUNCH_PARAM_END};
  return session.driver->cuLaunchKernel(
      launch.function, b.grid[0], b.grid[1], b.grid[2], b.block[0], b.block[1], b.block[2],
      b.shared_bytes, task.stream->raw, nullptr, param_bytes == 0 ? nullptr : extra);
}

CUresult launch_kernel_ex(Session& session, const Task& task, ReplyWriter&) {
  Launch launch;
  if (const CUresult bad = read_launch(session, task, &launch)) return bad;
  const wire::Launch& b = launch.body;
  static_assert(sizeof(CUlaunchAttribute) == sizeof(wire::LaunchAttribute));
  CUlaunchAttribute attributes[MAX_LAUNCH_ATTRIBUTES];
  std::memcpy(attributes, launch.attributes.data(), launch.attributes.size());
  for (uint32_t i = 0; i < b.n_attributes; ++i) {
    if (!wire::launch_attribute_is_plain(attributes[i].id)) session.violation(task);
  }
  CUlaunchConfig config{};
  config.gridDimX = b.grid[0];
  config.gridDimY = b.grid[1];
  config.gridDimZ = b.grid[2];
  config.blockDimX = b.block[0];
  config.blockDimY = b.block[1];
  config.blockDimZ = b.block[2];
  config.sharedMemBytes = b.shared_bytes;
  config.hStream = task.stream->raw;
  config.attrs = attributes;
  config.numAttrs = b.n_attributes;
  size_t param_bytes = b.param_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(launch.params.data()),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &param_bytes, CU_LAUNCH_PARAM_END};
  return session.driver->cuLaunchKernelEx(&config, launch.function, nullptr,
                                          param_bytes == 0 ? nullptr : extra);
}

}  // namespace kvgpu::worker
