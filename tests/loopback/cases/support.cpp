// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "support.h"

#include <cstring>

__asm__(
    ".section .rodata\n"
    "kernels_ptx_begin:\n"
    ".incbin \"" KERNELS_PTX
    "\"\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char kernels_ptx_begin[];

const char* kernels_ptx() { return kernels_ptx_begin; }

const char* error_name(CUresult result) {
  const char* name = nullptr;
  return cuGetErrorName(result, &name) == CUDA_SUCCESS ? name : "unknown CUresult";
}

Gpu::Gpu() {
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuModuleLoadData(&module, kernels_ptx()));
}

Gpu::~Gpu() {
  cuModuleUnload(module);
  cuDevicePrimaryCtxRelease(device);
}

CUfunction Gpu::function(const char* name) const {
  CUfunction function = nullptr;
  CU(cuModuleGetFunction(&function, module, name));
  return function;
}

Ints::Ints(int n_, int value) : n(n_) {
  CU(cuMemAlloc(&dptr, n * sizeof(int)));
  CU(cuMemsetD32(dptr, static_cast<unsigned>(value), static_cast<size_t>(n)));
  CU(cuCtxSynchronize());
}

Ints::~Ints() { cuMemFree(dptr); }

std::vector<int> Ints::read() const {
  std::vector<int> host(static_cast<size_t>(n));
  CU(cuMemcpyDtoH(host.data(), dptr, host.size() * sizeof(int)));
  return host;
}

Gate::Gate(const Gpu& gpu, CUstream stream) {
  // Loaded before the gate closes: where loading is lazy the first launch of a kernel may wait for
  // the whole device.
  CUdeviceptr nothing = 0;
  int n = 0;
  launch(gpu.function("add_one"), stream, {&nothing, &n});
  CU(cuStreamSynchronize(stream));
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&flag_), sizeof(int), 0));
  *static_cast<volatile int*>(flag_) = 0;
  CUdeviceptr address = 0;
  CU(cuMemHostGetDevicePointer(&address, flag_, 0));
  launch(gpu.function("wait_for_gate"), stream, {&address});
}

Gate::~Gate() {
  open();
  cuMemFreeHost(flag_);
}

void Gate::open() { *static_cast<volatile int*>(flag_) = 1; }

void launch(CUfunction function, CUstream stream, std::vector<void*> params, unsigned threads) {
  CU(cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, params.data(), nullptr));
}

void add_one(const Gpu& gpu, const Ints& data, CUstream stream) {
  CUdeviceptr dptr = data.dptr;
  int n = data.n;
  launch(gpu.function("add_one"), stream, {&dptr, &n}, static_cast<unsigned>(n));
}

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
