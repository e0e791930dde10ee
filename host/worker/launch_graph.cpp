// SPDX-License-Identifier: Apache-2.0
#include "launch_graph.h"

#include <algorithm>
#include <cstring>

#include "session.h"

namespace kvgpu::worker {

namespace {

// Runs of one graph that are worth making it: that takes as long as some ten (of one launch) or
// thirty launches (of eight).
constexpr uint32_t ENOUGH = 64;
// In a session: each takes up to 128 KiB of the GPU.
constexpr uint32_t MOST_GRAPHS = 256;

// What a graph's nodes would do otherwise than the stream's launches: its priority, its attributes
// and the part of the GPU that a green context has are the launches', not the graph's. And no
// kernel of a graph may read through a texture's or surface's reference (CUDA 13.0 cuda.h).
bool is_plain(const Session& session, const Stream& stream) {
  return stream.priority == 0 && !stream.has_attributes && stream.context->green == nullptr &&
         !session.has_references.load(std::memory_order_relaxed);
}

template <size_t N>
bool is_like(const std::array<wire::Launch, N>& launches,
             const std::array<const std::byte*, N>& bodies) {
  for (size_t i = 0; i < N; ++i) {
    if (std::memcmp(&launches[i], bodies[i], sizeof launches[i]) != 0) return false;
  }
  return true;
}

}  // namespace

template <size_t N>
void LaunchGraph<N>::close(const DriverTable& driver) {
  if (made_ == nullptr) return;
  if (made_->exec != nullptr) (void)driver.cuGraphExecDestroy(made_->exec);
  if (made_->graph != nullptr) (void)driver.cuGraphDestroy(made_->graph);
  made_->of_session->fetch_sub(1, std::memory_order_relaxed);  // only a count
  made_.reset();
}

template <size_t N>
void LaunchGraph<N>::discard(const DriverTable& driver) {
  if (made_ == nullptr) return;
  const bool has_paid = made_->n_runs >= ENOUGH;
  pays_from_ = has_paid ? PAYS_FROM : std::min(2 * pays_from_, PAYS_FROM_MOST);
  close(driver);
}

template <size_t N>
bool LaunchGraph<N>::comes_again(const Bodies& bodies) {
  if (is_like(before_, bodies)) return ++n_alike_ >= pays_from_;
  for (size_t i = 0; i < N; ++i) std::memcpy(&before_[i], bodies[i], sizeof before_[i]);
  n_alike_ = 0;
  return false;
}

template <size_t N>
CUresult LaunchGraph<N>::add_node(Session& session, size_t i, const std::byte* params) {
  const wire::Launch& b = made_->launches[i];
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

template <size_t N>
bool LaunchGraph<N>::make(Session& session, const Bodies& bodies) {
  const DriverTable& driver = *session.driver;
  if (!driver.has(driver.cuGraphAddKernelNode_v2) ||
      !driver.has(driver.cuGraphExecKernelNodeSetParams_v2) ||
      !driver.has(driver.cuGraphInstantiateWithFlags)) {
    return false;
  }
  // relaxed: only a count; of two threads at once each may find room
  if (session.n_launch_graphs.load(std::memory_order_relaxed) >= MOST_GRAPHS) return false;
  session.n_launch_graphs.fetch_add(1, std::memory_order_relaxed);
  made_ = std::make_unique<Made>();
  made_->of_session = &session.n_launch_graphs;
  made_->launches = before_;
  CUresult result = driver.cuGraphCreate(&made_->graph, 0);
  for (size_t i = 0; i < N && result == CUDA_SUCCESS; ++i) {
    result = add_node(session, i, bodies[i] + sizeof(wire::Launch));
  }
  if (result == CUDA_SUCCESS) {
    result = driver.cuGraphInstantiateWithFlags(&made_->exec, made_->graph, 0);
  }
  return result == CUDA_SUCCESS;
}

template <size_t N>
CUresult LaunchGraph<N>::launch(const DriverTable& driver, CUstream stream, const Bodies& bodies) {
  Made& made = *made_;
  for (size_t i = 0; i < N; ++i) {
    made.extra[i][1] = const_cast<std::byte*>(bodies[i] + sizeof(wire::Launch));
    const CUresult bad =
        driver.cuGraphExecKernelNodeSetParams_v2(made.exec, made.nodes[i], &made.params[i]);
    if (bad != CUDA_SUCCESS) return bad;
  }
  return driver.cuGraphLaunch(made.exec, stream);
}

template <size_t N>
void LaunchGraph<N>::note_change(const DriverTable& driver, uint64_t n_changes) {
  if (n_changes == n_changes_) return;
  discard(driver);
  n_alike_ = 0;
  n_changes_ = n_changes;
}

template <size_t N>
bool LaunchGraph<N>::give(Session& session, const Stream& stream, const Bodies& bodies) {
  const DriverTable& driver = *session.driver;
  note_change(driver, session.n_function_changes());
  const bool is_made = made_ != nullptr && is_like(made_->launches, bodies);
  if (is_made) n_alike_ = 0;
  if (!is_made && !comes_again(bodies)) return false;
  if (!is_plain(session, stream) || captures(driver, stream.raw)) return false;
  if (!is_made) discard(driver);
  if ((is_made || make(session, bodies)) && launch(driver, stream.raw, bodies) == CUDA_SUCCESS) {
    ++made_->n_runs;
    return true;
  }
  discard(driver);
  n_alike_ = 0;
  return false;
}

template class LaunchGraph<1>;
template class LaunchGraph<LAUNCHES_AT_ONCE>;

bool LoneGraphs::give(Session& session, const Stream& stream, const std::byte* body) {
  if (graphs_ == nullptr) graphs_ = std::make_unique<Graphs>();
  if (const uint64_t n_changes = session.n_function_changes(); n_changes != n_changes_) {
    for (auto& graph : *graphs_) graph.note_change(*session.driver, n_changes);
    n_changes_ = n_changes;
  }
  wire::Launch b;
  std::memcpy(&b, body, sizeof b);
  // Multiplied by the golden ratio's fraction, the high bits depend on all others.
  uint64_t kind = b.function;
  for (const uint32_t each : {b.grid[0], b.grid[1], b.block[0], b.shared_bytes}) {
    kind = (kind ^ each) * 0x9E3779B97F4A7C15u;
  }
  static_assert(N_GRAPHS == 1 << 6);
  return (*graphs_)[kind >> (64 - 6)].give(session, stream, {body});
}

void LoneGraphs::forget() {
  if (graphs_ == nullptr) return;
  for (auto& graph : *graphs_) graph.forget();
}

void LoneGraphs::close(const DriverTable& driver) {
  if (graphs_ == nullptr) return;
  for (auto& graph : *graphs_) graph.close(driver);
}

}  // namespace kvgpu::worker
