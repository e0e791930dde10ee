// SPDX-License-Identifier: Apache-2.0
// Device printf reaches standard output at the synchronisation, before what the host prints after
// it.
#include "check.h"

__global__ void speak(int round, const char* word) {
  if (threadIdx.x < 4)
    printf("device: round %d thread %u of %u: %d%% %5.2f %s %llx %c\n", round, threadIdx.x,
           blockDim.x, 50, threadIdx.x * 0.5, threadIdx.x == 3 ? "last" : "more",
           0x123456789abcdefull + threadIdx.x, 'a' + round);
  if (word != nullptr && threadIdx.x == 0) printf("%s\n", word);
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  for (int round = 0; round < 3; ++round) {
    printf("host: before round %d\n", round);
    fflush(stdout);
    speak<<<1, 32>>>(round, nullptr);
    CHECK(cudaGetLastError());
    if (round == 0)
      CHECK(cudaDeviceSynchronize());
    else
      CHECK(cudaStreamSynchronize(nullptr));
    printf("host: after round %d\n", round);
    fflush(stdout);
  }
  return finish("printf");
}
