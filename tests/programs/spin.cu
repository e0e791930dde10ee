// SPDX-License-Identifier: Apache-2.0
// Runs kernels for SECONDS (argument, default 10) and prints a count every second: something to
// kill.
#include <chrono>

#include "check.h"

__global__ void step(unsigned* values) {
  unsigned value = values[threadIdx.x];
  for (int i = 0; i < 100; ++i) value = value * 1664525u + 1013904223u;
  values[threadIdx.x] = value;
}

int main(int argc, char** argv) {
  const double n_seconds = argc > 1 ? atof(argv[1]) : 10;
  unsigned* values;
  CHECK(cudaMalloc(&values, 256 * sizeof(unsigned)));
  CHECK(cudaMemset(values, 0, 256 * sizeof(unsigned)));
  const auto start = std::chrono::steady_clock::now();
  unsigned long long n_iterations = 0;
  int n_printed = 0;
  while (true) {
    const double elapsed_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (elapsed_s >= n_printed) {
      printf("spin: second %d: %llu iterations\n", n_printed++, n_iterations);
      fflush(stdout);
    }
    if (elapsed_s >= n_seconds) break;
    step<<<1, 256>>>(values);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(nullptr));
    ++n_iterations;
  }
  CHECK(cudaFree(values));
  return finish("spin");
}
