// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include <cstdio>
#include <cstdlib>

namespace bench {

namespace {

// Every GPU since compute_50 takes it.
constexpr char EMPTY_KERNEL[] = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry nothing() { ret; }
)";

}  // namespace

void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  (void)cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s\n", call, name != nullptr ? name : "unknown error");
  std::exit(1);
}

Gpu::Gpu() {
  CUmodule module = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context_, 0));
  MUST(cuCtxSetCurrent(context_));
  MUST(cuModuleLoadData(&module, EMPTY_KERNEL));
  MUST(cuModuleGetFunction(&nothing_, module, "nothing"));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void figure(const char* name, double value, const char* unit) {
  std::printf("%s %.6g %s\n", name, value, unit);
  std::fflush(stdout);
}

}  // namespace bench
