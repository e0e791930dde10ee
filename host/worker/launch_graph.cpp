// SPDX-License-Identifier: Apache-2.0
#include "launch_graph.h"

#include <cstring>

#include "session.h"

namespace kvgpu::worker {

namespace {

// To make a graph takes as long as some thirty launches, and memory of the GPU.
constexpr uint32_t PAYS_FROM = 8;

// What a graph's nodes would do otherwise than the stream's launches: its priority, its attributes
// and the part of the GPU that a green context has are the launches', not the graph's. And no
// kernel of a graph may read through a texture's or surface's reference (CUDA 13.0 cuda.h).
bool is_plain(const Session& session, const Stream& stream) {
  return stream.priority == 0 && !stream.has_attributes && stream.context->green == nullptr &&
         !session.has_references.load(std::memory_order_relaxed);
}

bool captures(const DriverTable& driver, CUstream stream) {
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return driver.cuStreamIsCapturing(stream, &capturing) != CUDA_SUCCESS ||
         capturing != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace

void LaunchGraph::close(const DriverTable& driver) {
  if (made_ == nullptr) return;
  if (made_->exec != nullptr) (void)driver.cuGraphExecDestroy(made_->exec);
  if (made_->graph != nullptr) (void)driver.cuGraphDestroy(made_->graph);
  made_.reset();
}

bool LaunchGraph::is_as_before(const Bodies& bodies) const {
  for (size_t i = 0; i < N; ++i) {
    if (std::memcmp(&before_[i], bodies[i], sizeof before_[i]) != 0) return false;
  }
  return true;
}

void LaunchGraph::remember(const Bodies& bodies) {
  for (size_t i = 0; i < N; ++i) std::memcpy(&before_[i], bodies[i], sizeof before_[i]);
  n_alike_ = 0;
  is_refused_ = false;
}

CUresult LaunchGraph::add_node(Session& session, size_t i, const std::byte* params) {
  const wire::Launch& b = before_[i];
  CUDA_KERNEL_NODE_PARAMS& node = made_->params[i];
  node.gridDimX = b.grid[0];
  node.gridDimY = b.grid[1];
  node.gridDimZ = b.grid[2];
  node.blockDimX = b.block[0];
  node.blockDimY = b.block[1];
  node.blockDimZ = b.block[2];
  node.sharedMemBytes = b.shared_bytes;
  if (!session.handles.get(b.function, &node.kern) &&
      !session.handles.get(b.function, &node.func)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  // As one buffer, whose size the driver checks.
  made_->param_bytes[i] = b.param_bytes;
  made_->extra[i] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(params),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &made_->param_bytes[i], CU_LAUNCH_PARAM_END};
  if (b.param_bytes > 0) node.extra = made_->extra[i].data();
  const CUgraphNode* const after = i == 0 ? nullptr : &made_->nodes[i - 1];
  return session.driver->cuGraphAddKernelNode_v2(&made_->nodes[i], made_->graph, after,
                                                 i == 0 ? 0 : 1, &node);
}

bool LaunchGraph::make(Session& session, const Bodies& bodies) {
  const DriverTable& driver = *session.driver;
  if (!driver.has(driver.cuGraphAddKernelNode_v2) ||
      !driver.has(driver.cuGraphExecKernelNodeSetParams_v2) ||
      !driver.has(driver.cuGraphInstantiateWithFlags)) {
    return false;
  }
  made_ = std::make_unique<Made>();
  CUresult result = driver.cuGraphCreate(&made_->graph, 0);
  for (size_t i = 0; i < N && result == CUDA_SUCCESS; ++i) {
    result = add_node(session, i, bodies[i] + sizeof(wire::Launch));
  }
  if (result == CUDA_SUCCESS) {
    result = driver.cuGraphInstantiateWithFlags(&made_->exec, made_->graph, 0);
  }
  if (result != CUDA_SUCCESS) close(driver);
  return result == CUDA_SUCCESS;
}

CUresult LaunchGraph::launch(const DriverTable& driver, CUstream stream, const Bodies& bodies) {
  Made& made = *made_;
  for (size_t i = 0; i < N; ++i) {
    made.extra[i][1] = const_cast<std::byte*>(bodies[i] + sizeof(wire::Launch));
    const CUresult bad =
        driver.cuGraphExecKernelNodeSetParams_v2(made.exec, made.nodes[i], &made.params[i]);
    if (bad != CUDA_SUCCESS) return bad;
  }
  return driver.cuGraphLaunch(made.exec, stream);
}

bool LaunchGraph::give(Session& session, const Stream& stream, const Bodies& bodies) {
  const DriverTable& driver = *session.driver;
  const uint64_t n_changes = session.n_function_changes();
  const bool has_changed = n_changes != n_changes_;
  if (has_changed || !is_as_before(bodies)) {
    close(driver);
    remember(bodies);
    n_changes_ = n_changes;
    return false;
  }
  if (is_refused_ || ++n_alike_ < PAYS_FROM) return false;
  if (!is_plain(session, stream) || captures(driver, stream.raw)) return false;
  const bool is_given = (made_ != nullptr || make(session, bodies)) &&
                        launch(driver, stream.raw, bodies) == CUDA_SUCCESS;
  is_refused_ = !is_given;
  return is_given;
}

}  // namespace kvgpu::worker
