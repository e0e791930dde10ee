// SPDX-License-Identifier: Apache-2.0
// Computes for SECONDS (argument, default 10) and checks every result; says how long the longest
// round took. Nothing that happens to the daemons meanwhile may be seen in here.
#include <algorithm>
#include <chrono>

#include "check.h"

using Clock = std::chrono::steady_clock;

constexpr unsigned N_VALUES = 4096;
constexpr unsigned N_STEPS = 50;

__global__ void step(unsigned* values) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  values[i] = values[i] * 1664525u + i;
}

static double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

static bool round_is_right(unsigned* values) {
  unsigned* copy = nullptr;
  CHECK(cudaMallocHost(&copy, N_VALUES * sizeof *copy));
  CHECK(cudaMemset(values, 0, N_VALUES * sizeof *values));
  for (unsigned i = 0; i < N_STEPS; ++i) step<<<N_VALUES / 256, 256>>>(values);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(copy, values, N_VALUES * sizeof *values, cudaMemcpyDeviceToHost));
  bool right = true;
  for (unsigned i = 0; i < N_VALUES; ++i) {
    unsigned expected = 0;
    for (unsigned n = 0; n < N_STEPS; ++n) expected = expected * 1664525u + i;
    right = right && copy[i] == expected;
  }
  CHECK(cudaFreeHost(copy));
  return right;
}

int main(int argc, char** argv) {
  const double n_seconds = argc > 1 ? atof(argv[1]) : 10;
  unsigned* values;
  CHECK(cudaMalloc(&values, N_VALUES * sizeof *values));
  (void)round_is_right(values);  // contexts and modules are loaded
  printf("steady: begins\n");
  fflush(stdout);
  const auto start = Clock::now();
  double longest_s = 0;
  unsigned long long n_rounds = 0;
  while (seconds_since(start) < n_seconds) {
    const auto begin = Clock::now();
    all_passed() = round_is_right(values) && all_passed();
    longest_s = std::max(longest_s, seconds_since(begin));
    ++n_rounds;
  }
  CHECK(cudaFree(values));
  printf("steady: %llu rounds, the longest took %.0f ms\n", n_rounds, longest_s * 1e3);
  return finish("steady");
}
