// SPDX-License-Identifier: Apache-2.0
// The smallest CUDA program that computes something, linked for glibc 2.17: for guests of any age.
#include "check.h"

__global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

int main() {
  constexpr int N = 100'000;
  constexpr size_t N_BYTES = N * sizeof(float);
  float* const host = static_cast<float*>(malloc(3 * N_BYTES));
  float *const a = host, *const b = a + N, *const c = b + N;
  for (int i = 0; i < N; ++i) a[i] = i % 1024 * 0.5f, b[i] = i % 777 * 0.25f;
  float* device;
  CHECK(cudaMalloc(&device, 3 * N_BYTES));
  CHECK(cudaMemcpy(device, host, 2 * N_BYTES, cudaMemcpyHostToDevice));
  add<<<(N + 255) / 256, 256>>>(device, device + N, device + 2 * N, N);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(c, device + 2 * N, N_BYTES, cudaMemcpyDeviceToHost));
  bool same = true;
  for (int i = 0; i < N; ++i) same = same && c[i] == a[i] + b[i];
  report("vector add", same, checksum(c, N_BYTES));
  CHECK(cudaFree(device));
  free(host);
  return finish("vector_add");
}
