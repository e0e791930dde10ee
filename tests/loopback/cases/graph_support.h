// SPDX-License-Identifier: Apache-2.0
// What the cases about graphs share.
#pragma once

#include "support.h"

struct Stream {
  Stream() { CU(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { cuStreamDestroy(handle); }
  CUstream handle = nullptr;
};

// Page-locked memory that holds ints.
struct Pinned {
  explicit Pinned(size_t n) { CU(cuMemHostAlloc(reinterpret_cast<void**>(&values), n * 4, 0)); }
  ~Pinned() { cuMemFreeHost(values); }
  int* values = nullptr;
};

// One row from one place to another; pointers are host memory, numbers the device's.
CUDA_MEMCPY3D linear(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUDA_MEMCPY3D linear(CUdeviceptr to, const void* from, size_t bytes);
CUDA_MEMCPY3D linear(void* to, CUdeviceptr from, size_t bytes);

// Of add_one on these ints; the arguments stay here.
struct AddOne {
  AddOne(const Gpu& gpu, const Ints& data);
  CUdeviceptr dptr;
  int n;
  void* arguments[2];
  CUDA_KERNEL_NODE_PARAMS params{};
};

struct Graph {
  using After = std::vector<CUgraphNode>;
  Graph() { CU(cuGraphCreate(&handle, 0)); }
  ~Graph() { cuGraphDestroy(handle); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  CUgraphNode add_one(const Gpu& gpu, const Ints& data, const After& after) const;
  CUgraphNode copy(const CUDA_MEMCPY3D& params, const After& after) const;
  CUgraphNode set(CUdeviceptr dptr, unsigned value, size_t n, const After& after) const;
  CUgraphNode host(CUhostFn function, void* user, const After& after) const;
  CUgraphNode empty(const After& after) const;
  CUgraph handle = nullptr;
};

struct Exec {
  explicit Exec(const Graph& graph) { CU(cuGraphInstantiate(&handle, graph.handle, 0)); }
  ~Exec() { cuGraphExecDestroy(handle); }
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;
  CUgraphExec handle = nullptr;
};
