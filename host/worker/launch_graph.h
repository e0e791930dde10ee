// SPDX-License-Identifier: Apache-2.0
// Eight launches of a stream that come again and again, the same kernels in the same shapes: they
// go to the driver as one graph, whose nodes get the parameters of this time. A launch takes the
// driver 0.76 µs so, in the place of 3.9 (one H100, driver 580); one whose kernel or shape is
// another one than that of its node takes as long as without a graph, and may wait for what is
// under way.
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

  // True: the driver has all of them. False: none, so they are for the caller to give.
  bool give(Session& session, const Stream& stream, const Bodies& bodies);
  // The stream is going, or its context.
  void close(const DriverTable& driver);

 private:
  struct Made {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    std::array<CUgraphNode, N> nodes{};
    std::array<CUDA_KERNEL_NODE_PARAMS, N> params{};  // which point into what follows
    std::array<std::array<void*, 5>, N> extra{};
    std::array<size_t, N> param_bytes{};
  };

  bool is_as_before(const Bodies& bodies) const;
  void remember(const Bodies& bodies);
  bool make(Session& session, const Bodies& bodies);
  CUresult add_node(Session& session, size_t i, const std::byte* params);
  CUresult launch(const DriverTable& driver, CUstream stream, const Bodies& bodies);

  std::array<wire::Launch, N> before_{};
  uint32_t n_alike_ = 0;  // in a row
  bool is_refused_ = false;
  uint64_t n_changes_ = 0;  // of the session's functions, when it was made
  std::unique_ptr<Made> made_;
};

}  // namespace kvgpu::worker
