// SPDX-License-Identifier: Apache-2.0
// Kernel launches. Parameters arrive laid out as the kernel wants them and go on as one buffer.
#include "handlers/launch.h"

#include <memory>

#include "generated/handlers.gen.h"
#include "handle_cache.h"

namespace kvgpu::worker {

namespace {

constexpr uint32_t MAX_LAUNCH_ATTRIBUTES = 32;

struct Launch {
  wire::Launch body;
  CUfunction function;
  std::span<const std::byte> attributes;
  std::span<const std::byte> params;
  std::unique_ptr<std::byte[]> copied;  // where they came through the slab
};

// Parameters in the slab are copied once, like everything the guest can still write to.
bool copy_params(Session& session, std::span<const std::byte> rest, Launch* launch) {
  uint64_t slab_off;
  const uint32_t bytes = launch->body.param_bytes;
  if (rest.size() < sizeof slab_off || bytes > wire::MAX_PARAM_BYTES) return false;
  std::memcpy(&slab_off, rest.data(), sizeof slab_off);
  if (slab_off > SLAB_BYTES || bytes > SLAB_BYTES - slab_off) return false;
  const std::byte* const first = session.slab() + slab_off;
  launch->copied.reset(new std::byte[bytes]);
  std::memcpy(launch->copied.get(), first, bytes);
  launch->params = {launch->copied.get(), bytes};
  return true;
}

CUresult read_launch(Session& session, const Task& task, Launch* launch) {
  if (!task.read(&launch->body)) session.violation(task);
  const wire::Launch& body = launch->body;
  const auto rest = task.after<wire::Launch>();
  const size_t attribute_bytes = body.n_attributes * sizeof(wire::LaunchAttribute);
  if (body.n_attributes > MAX_LAUNCH_ATTRIBUTES || attribute_bytes > rest.size()) {
    session.violation(task);
  }
  launch->attributes = rest.first(attribute_bytes);
  const auto after_attributes = rest.subspan(attribute_bytes);
  if (body.params_in == wire::PARAMS_IN_SLAB) {
    if (!copy_params(session, after_attributes, launch)) session.violation(task);
  } else {
    if (body.param_bytes > after_attributes.size()) session.violation(task);
    launch->params = after_attributes.first(body.param_bytes);
  }
  launch->function = task.cache->function(body.function);
  return launch->function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult launch_kernel(Session& session, const Task& task, ReplyWriter&) {
  Launch launch;
  if (const CUresult bad = read_launch(session, task, &launch)) return bad;
  return call_launch(session, launch.body, launch.function, task.stream->raw, launch.params.data());
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

CUresult occupancy_max_potential_block_size_with_flags(Session& session, const Task& task,
                                                       ReplyWriter& reply) {
  wire::PotentialBlockSize body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUfunction function;
  if (!session.handles.get(body.function, &function)) return CUDA_ERROR_INVALID_HANDLE;
  wire::PotentialBlockSizeFound out{};
  const CUresult result = session.driver->cuOccupancyMaxPotentialBlockSizeWithFlags(
      &out.min_grid, &out.block, function, nullptr, body.dynamic_bytes, body.limit, body.flags);
  reply.put(out);
  return result;
}

namespace {

template <typename Ask>
CUresult ask_clusters(Session& session, const Task& task, ReplyWriter& reply, Ask ask) {
  wire::ClusterQuery body;
  if (!task.read(&body)) session.violation(task);
  const auto list = task.after<wire::ClusterQuery>();
  if (body.n_attributes > MAX_LAUNCH_ATTRIBUTES ||
      list.size() < body.n_attributes * sizeof(wire::LaunchAttribute)) {
    session.violation(task);
  }
  CUlaunchAttribute attributes[MAX_LAUNCH_ATTRIBUTES];
  std::memcpy(attributes, list.data(), body.n_attributes * sizeof(wire::LaunchAttribute));
  for (uint32_t i = 0; i < body.n_attributes; ++i) {
    if (!wire::launch_attribute_is_plain(attributes[i].id)) session.violation(task);
  }
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUfunction function;
  if (!session.handles.get(body.function, &function)) return CUDA_ERROR_INVALID_HANDLE;
  CUlaunchConfig config{body.grid[0],  body.grid[1],     body.grid[2],      body.block[0],
                        body.block[1], body.block[2],    body.shared_bytes, nullptr,
                        attributes,    body.n_attributes};
  wire::ClusterAnswer out{};
  const CUresult result =
      ask == nullptr ? CUDA_ERROR_NOT_SUPPORTED : ask(&out.n, function, &config);
  reply.put(out);
  return result;
}

}  // namespace

CUresult occupancy_max_potential_cluster_size(Session& session, const Task& task,
                                              ReplyWriter& reply) {
  return ask_clusters(session, task, reply, session.driver->cuOccupancyMaxPotentialClusterSize);
}
CUresult occupancy_max_active_clusters(Session& session, const Task& task, ReplyWriter& reply) {
  return ask_clusters(session, task, reply, session.driver->cuOccupancyMaxActiveClusters);
}

}  // namespace kvgpu::worker
