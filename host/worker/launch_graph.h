// SPDX-License-Identifier: Apache-2.0
// Launches of a stream that come again and again, the same kernels in the same shapes: they go to
// the driver as a graph, whose nodes get the parameters of this time. One H100, driver 580, of
// kernels that do nothing:
//                  the driver's call   the GPU, each    until the host knows
//   by itself      2.4 to 3.1 us       1.87 us          7.8 us
//   graph of one   1.3 to 2.0          1.70             6.0
//   graph of eight 0.8                 0.94
// Where a node's kernel or shape changes a launch takes 2.0 to 2.6, as long as the GPU needs: the
// call may wait for what is under way. A graph of one takes 5 us to be instantiated, the first 40.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "driver.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

class Session;
struct Stream;

// What a run of launches has at most (launch_run.h).
constexpr size_t LAUNCHES_AT_ONCE = 8;

// Of who executes the stream's records, as its window (stream_window.h). The stream's context is
// current in each call.
template <size_t N>
class LaunchGraph {
 public:
  // Of each record: a wire::Launch without mark or attributes, and its parameters.
  using Bodies = std::array<const std::byte*, N>;
  using Launches = std::array<wire::Launch, N>;

  // True: the driver has all of them. False: none, so they are for the caller to give.
  bool give(Session& session, const Stream& stream, const Bodies& bodies);
  // The driver has refused a launch: those before it do not count.
  void forget() { n_alike_ = 0; }
  // So many of the session's functions have changed (Session::n_function_changes()): what was made
  // of them before goes.
  void note_change(const DriverTable& driver, uint64_t n_changes);
  // The stream is going, or its context.
  void close(const DriverTable& driver);

 private:
  // Runs that are alike, one after another. Where a graph has served for few, the next one is made
  // later.
  static constexpr uint32_t PAYS_FROM = 8, PAYS_FROM_MOST = 1 << 16;

  struct Made {
    Launches launches{};
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    std::array<CUgraphNode, N> nodes{};
    std::array<CUDA_KERNEL_NODE_PARAMS, N> params{};  // which point into what follows
    std::array<std::array<void*, 5>, N> extra{};
    std::array<size_t, N> param_bytes{};
    uint32_t n_runs = 0;                          // that were given as this graph
    std::atomic<uint32_t>* of_session = nullptr;  // Session::n_launch_graphs
  };

  bool comes_again(const Bodies& bodies);
  bool make(Session& session, const Bodies& bodies);
  CUresult add_node(Session& session, size_t i, const std::byte* params);
  CUresult launch(const DriverTable& driver, CUstream stream, const Bodies& bodies);
  void discard(const DriverTable& driver);

  Launches before_{};               // the last run that was no graph
  uint32_t n_alike_ = 0;            // in a row
  uint32_t pays_from_ = PAYS_FROM;  // so many of those
  uint64_t n_changes_ = 0;          // of the session's functions, when it was made
  std::unique_ptr<Made> made_;
};

using RunGraph = LaunchGraph<LAUNCHES_AT_ONCE>;

// Of launches that come one by one, each kernel in each shape as one graph.
class LoneGraphs {
 public:
  // As LaunchGraph::give().
  bool give(Session& session, const Stream& stream, const std::byte* body);
  void forget();
  void close(const DriverTable& driver);

 private:
  // Of two kinds that fall on one and take turns, one stays a launch.
  static constexpr size_t N_GRAPHS = 64;
  using Graphs = std::array<LaunchGraph<1>, N_GRAPHS>;

  std::unique_ptr<Graphs> graphs_;
  uint64_t n_changes_ = 0;  // as a LaunchGraph's: none of a function that is gone stays
};

}  // namespace kvgpu::worker
