// SPDX-License-Identifier: Apache-2.0
// A libcuda that is the software GPU with one planted failure: KVGPU_FAULT=cuLaunchKernel:N:ERROR
// makes the N-th launch return ERROR without launching. What is not defined here the worker's dlsym
// finds in the software GPU, which this library needs.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

struct Fault {
  int at = 0;
  int error = 0;
};

Fault planted() {
  Fault fault;
  const char* text = std::getenv("KVGPU_FAULT");
  if (text != nullptr) (void)std::sscanf(text, "cuLaunchKernel:%d:%d", &fault.at, &fault.error);
  return fault;
}

void* real(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* const function = library != nullptr ? dlsym(library, name) : nullptr;
  if (function == nullptr) std::abort();
  return function;
}

}  // namespace

extern "C" CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                   void** params, void** extra) {
  static const Fault fault = planted();
  static std::atomic<int> n_calls{0};
  if (++n_calls == fault.at) return static_cast<CUresult>(fault.error);
  static const auto launch = reinterpret_cast<decltype(&cuLaunchKernel)>(real("cuLaunchKernel"));
  return launch(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
