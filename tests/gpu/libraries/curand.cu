// SPDX-License-Identifier: Apache-2.0
// cuRAND: generators of the host API and a generator in a kernel; equal seeds give equal numbers.
#include <curand.h>
#include <curand_kernel.h>

#include "library.h"

namespace {

constexpr int N = 100'000, THREADS = 256;

__global__ void in_kernel(float* out) {
  curandStatePhilox4_32_10_t state;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  curand_init(7, i, 0, &state);
  out[i] = curand_normal(&state);
}

void generate(const char* name, curandRngType_t type) {
  curandGenerator_t generator;
  CALL(curandCreateGenerator(&generator, type));
  if (type < CURAND_RNG_QUASI_DEFAULT) CALL(curandSetPseudoRandomGeneratorSeed(generator, 12345));
  const Device<float> values(N);
  CALL(curandGenerateUniform(generator, values.get(), N));
  const auto found = values.read();
  double mean = 0;
  for (const float value : found) mean += value / N;
  report(name, std::fabs(mean - 0.5) < 0.01, checksum(found.data(), values.n_bytes()));
  CALL(curandDestroyGenerator(generator));
}

}  // namespace

int main() {
  generate("XORWOW", CURAND_RNG_PSEUDO_XORWOW);
  generate("MRG32k3a", CURAND_RNG_PSEUDO_MRG32K3A);
  generate("MTGP32", CURAND_RNG_PSEUDO_MTGP32);
  generate("MT19937", CURAND_RNG_PSEUDO_MT19937);
  generate("Philox", CURAND_RNG_PSEUDO_PHILOX4_32_10);
  generate("Sobol", CURAND_RNG_QUASI_SOBOL32);
  const Device<float> values(N / THREADS * THREADS);
  in_kernel<<<N / THREADS, THREADS>>>(values.get());
  CHECK(cudaGetLastError());
  const auto found = values.read();
  double squares = 0;
  for (const float value : found) squares += static_cast<double>(value) * value;
  report("curand_normal", std::fabs(squares / static_cast<double>(found.size()) - 1) < 0.05,
         checksum(found.data(), values.n_bytes()));
  return finish("curand");
}
