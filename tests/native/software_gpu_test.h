// SPDX-License-Identifier: Apache-2.0
// For the tests of the software GPU: they use the driver API as any program would.
#pragma once

#include <cuda.h>
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#define CU(call) REQUIRE_EQ((call), CUDA_SUCCESS)

namespace software_gpu_test {

inline const std::string HEADER = ".version 9.0\n.target sm_80\n.address_size 64\n";

/// The primary context of device 0, current while the object lives. A new one has no error pending.
class Gpu {
 public:
  Gpu() {
    CU(cuInit(0));
    CUcontext context;
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
  }
  ~Gpu() { cuDevicePrimaryCtxRelease(0); }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  CUfunction kernel(const std::string& ptx, const char* name = "k") {
    CUmodule module;
    CU(cuModuleLoadData(&module, (HEADER + ptx).c_str()));
    CUfunction function;
    CU(cuModuleGetFunction(&function, module, name));
    return function;
  }

  template <class... A>
  CUresult launch(CUfunction function, unsigned grid, unsigned block, CUstream stream,
                  A... arguments) {
    void* values[] = {&arguments..., nullptr};
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, values, nullptr);
  }
};

template <class T>
class Buffer {
 public:
  explicit Buffer(const std::vector<T>& values) : n_(values.size()) {
    CU(cuMemAlloc(&pointer, n_ * sizeof(T)));
    CU(cuMemcpyHtoD(pointer, values.data(), n_ * sizeof(T)));
  }
  ~Buffer() { cuMemFree(pointer); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::vector<T> read() const {
    std::vector<T> values(n_);
    CU(cuMemcpyDtoH(values.data(), pointer, n_ * sizeof(T)));
    return values;
  }
  CUdeviceptr pointer = 0;

 private:
  size_t n_;
};

}  // namespace software_gpu_test
