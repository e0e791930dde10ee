// SPDX-License-Identifier: Apache-2.0
// Eight launches of a stream that come again and again, the same kernels in the same shapes: they
// go to the driver as one graph, whose nodes get the parameters of this time. A launch takes the
// driver 0.76 µs so, in the place of 3.9 (one H100, driver 580). Where a node's kernel or shape
// changes it takes 2.0 to 2.6, as long as the GPU needs: the call may wait for what is under way.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "driver.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

class Session;
struct Stream;

// Of who executes the stream's records, as its window (stream_window.h). The stream's context is
// current in each call.
class LaunchGraph {
 public:
  static constexpr size_t N = 8;
  // Of each record: a wire::Launch without mark or attributes, and its parameters.
  using Bodies = std::array<const std::byte*, N>;
  using Launches = std::array<wire::Launch, N>;

  // True: the driver has all of them. False: none, so they are for the caller to give.
  bool give(Session& session, const Stream& stream, const Bodies& bodies);
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
    uint32_t n_runs = 0;  // that were given as this graph
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

}  // namespace kvgpu::worker
