// SPDX-License-Identifier: Apache-2.0
// bugs NAME [fixed]: a kernel with one bug, or without it, for the software GPU's check mode. The
// line that is to be named ends with "found".
#include <cstring>

#include "check.h"

constexpr int N_THREADS = 1024;

__global__ void race(int* out, bool fixed) {
  __shared__ int s[N_THREADS];
  s[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (fixed) __syncthreads();
  out[threadIdx.x] = s[N_THREADS - 1 - threadIdx.x];  // found
}

__global__ void overwrite(int* out, bool fixed) {
  __shared__ int s[N_THREADS];
  s[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  const int left = s[(threadIdx.x + 1) % N_THREADS];
  if (fixed) __syncthreads();
  s[threadIdx.x] = left + 1;  // found
  out[threadIdx.x] = s[threadIdx.x];
}

__global__ void warp(int* out, bool fixed) {
  __shared__ int s[N_THREADS];
  s[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (fixed) __syncwarp();
  out[threadIdx.x] = s[threadIdx.x ^ 1];  // found
}

__global__ void uninitialised(int* out, bool fixed) {
  __shared__ int s[N_THREADS];
  if (threadIdx.x != 7 || fixed) s[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];  // found
}

__global__ void bounds(int* out, bool fixed) {
  out[threadIdx.x + (fixed ? 0 : 1)] = 1;  // found
}

__global__ void shared_bounds(int* out, bool fixed) {
  __shared__ volatile int s[N_THREADS];
  const unsigned i = threadIdx.x + (fixed ? 0 : 1);
  s[i] = static_cast<int>(i);  // found
  out[threadIdx.x] = s[i];
}

/// Shared data under a lock, and without.
__global__ void lock(int* out, bool fixed) {
  __shared__ int taken, sum;
  if (threadIdx.x == 0) taken = sum = 0;
  __syncthreads();
  for (bool done = threadIdx.x % 256 != 0; !done;) {
    if (fixed && atomicCAS(&taken, 0, 1) != 0) continue;
    __threadfence_block();
    sum += 1;  // found
    __threadfence_block();
    if (fixed) atomicExch(&taken, 0);
    done = true;
  }
  __syncthreads();
  out[threadIdx.x] = sum;
}

int main(int argc, char** argv) {
  using Kernel = void (*)(int*, bool);
  const struct {
    const char* name;
    Kernel kernel;
  } kernels[] = {{"race", race},     {"overwrite", overwrite},
                 {"warp", warp},     {"uninitialised", uninitialised},
                 {"bounds", bounds}, {"shared_bounds", shared_bounds},
                 {"lock", lock}};
  const bool fixed = argc > 2 && strcmp(argv[2], "fixed") == 0;
  for (const auto& [name, kernel] : kernels) {
    if (argc < 2 || strcmp(name, argv[1]) != 0) continue;
    int *out, *neighbour;  // an allocation on each side of it
    CHECK(cudaMalloc(&neighbour, N_THREADS * sizeof(int)));
    CHECK(cudaMalloc(&out, N_THREADS * sizeof(int)));
    CHECK(cudaMalloc(&neighbour, N_THREADS * sizeof(int)));
    kernel<<<1, N_THREADS>>>(out, fixed);
    printf("%s: %s\n", name, cudaGetErrorString(cudaDeviceSynchronize()));
    return 0;
  }
  fprintf(stderr, "usage: bugs NAME [fixed]\n");
  return 2;
}
