// SPDX-License-Identifier: Apache-2.0
#include "graph_support.h"

namespace {

CUDA_MEMCPY3D row(size_t bytes) {
  CUDA_MEMCPY3D p{};
  p.dstMemoryType = p.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  p.dstPitch = p.srcPitch = bytes;
  p.dstHeight = p.srcHeight = 1;
  p.WidthInBytes = bytes;
  p.Height = p.Depth = 1;
  return p;
}

CUcontext current() {
  CUcontext context = nullptr;
  CU(cuCtxGetCurrent(&context));
  return context;
}

}  // namespace

CUDA_MEMCPY3D linear(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D p = row(bytes);
  p.dstDevice = to;
  p.srcDevice = from;
  return p;
}

CUDA_MEMCPY3D linear(CUdeviceptr to, const void* from, size_t bytes) {
  CUDA_MEMCPY3D p = row(bytes);
  p.dstDevice = to;
  p.srcMemoryType = CU_MEMORYTYPE_HOST;
  p.srcHost = from;
  return p;
}

CUDA_MEMCPY3D linear(void* to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D p = row(bytes);
  p.dstMemoryType = CU_MEMORYTYPE_HOST;
  p.dstHost = to;
  p.srcDevice = from;
  return p;
}

AddOne::AddOne(const Gpu& gpu, const Ints& data)
    : dptr(data.dptr), n(data.n), arguments{&dptr, &n} {
  params.func = gpu.function("add_one");
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = static_cast<unsigned>(data.n);
  params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = arguments;
}

CUgraphNode Graph::add_one(const Gpu& gpu, const Ints& data, const After& after) const {
  const AddOne kernel(gpu, data);
  CUgraphNode node = nullptr;
  CU(cuGraphAddKernelNode(&node, handle, after.data(), after.size(), &kernel.params));
  return node;
}

CUgraphNode Graph::copy(const CUDA_MEMCPY3D& params, const After& after) const {
  CUgraphNode node = nullptr;
  CU(cuGraphAddMemcpyNode(&node, handle, after.data(), after.size(), &params, current()));
  return node;
}

CUgraphNode Graph::set(CUdeviceptr dptr, unsigned value, size_t n, const After& after) const {
  const CUDA_MEMSET_NODE_PARAMS params{dptr, 4 * n, value, 4, n, 1};
  CUgraphNode node = nullptr;
  CU(cuGraphAddMemsetNode(&node, handle, after.data(), after.size(), &params, current()));
  return node;
}

CUgraphNode Graph::host(CUhostFn function, void* user, const After& after) const {
  const CUDA_HOST_NODE_PARAMS params{function, user};
  CUgraphNode node = nullptr;
  CU(cuGraphAddHostNode(&node, handle, after.data(), after.size(), &params));
  return node;
}

CUgraphNode Graph::empty(const After& after) const {
  CUgraphNode node = nullptr;
  CU(cuGraphAddEmptyNode(&node, handle, after.data(), after.size()));
  return node;
}
