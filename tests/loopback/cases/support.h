// SPDX-License-Identifier: Apache-2.0
// What the cases share: a context, the module of kernels.cu, checked calls.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

const char* error_name(CUresult result);

// The call must succeed; says which did not.
#define CU(call) REQUIRE_MESSAGE((call) == CUDA_SUCCESS, #call)
// The call must return exactly this.
#define CU_IS(call, expected) CHECK_EQ(static_cast<int>(call), static_cast<int>(expected))

const char* kernels_ptx();

// cuInit, primary context current, kernels loaded.
class Gpu {
 public:
  Gpu();
  ~Gpu();
  CUfunction function(const char* name) const;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
};

// Device memory holding ints.
class Ints {
 public:
  explicit Ints(int n, int value = 0);
  ~Ints();
  CUdeviceptr dptr = 0;
  std::vector<int> read() const;
  const int n;
};

// Keeps a stream busy until open() (a kernel spins on pinned memory).
class Gate {
 public:
  Gate(const Gpu& gpu, CUstream stream);
  ~Gate();
  void open();

 private:
  int* flag_ = nullptr;
};

void launch(CUfunction function, CUstream stream, std::vector<void*> params, unsigned threads = 1);
void add_one(const Gpu& gpu, const Ints& data, CUstream stream);

// The function of exactly this name, where cuda.h means a later form by it.
template <typename Function>
Function first_form(const char* name) {
  void* const function = dlsym(RTLD_DEFAULT, name);
  REQUIRE_MESSAGE(function != nullptr, name);
  return reinterpret_cast<Function>(function);
}

double seconds(const std::function<void()>& body);
