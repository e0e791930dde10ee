/* SPDX-License-Identifier: Apache-2.0
 * A CUDA process that computes until it is killed: fills device memory anew, reads it back and
 * counts the rounds in the file that its argument names. Ends with 1 at the first wrong value. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

enum { N_WORDS = 4096 };

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "linger: %s\n", dlerror());
    return 1;
  }
  int (*init)(unsigned) = entry("cuInit");
  int (*retain)(void**, int) = entry("cuDevicePrimaryCtxRetain");
  int (*set_current)(void*) = entry("cuCtxSetCurrent");
  int (*alloc)(uint64_t*, size_t) = entry("cuMemAlloc_v2");
  int (*fill)(uint64_t, unsigned, size_t) = entry("cuMemsetD32_v2");
  int (*read_back)(void*, uint64_t, size_t) = entry("cuMemcpyDtoH_v2");
  static uint32_t words[N_WORDS];
  void* context = NULL;
  uint64_t memory = 0;
  check("cuInit", init(0));
  check("cuDevicePrimaryCtxRetain", retain(&context, 0));
  check("cuCtxSetCurrent", set_current(context));
  check("cuMemAlloc", alloc(&memory, sizeof words));
  for (unsigned round = 1;; ++round) {
    check("cuMemsetD32", fill(memory, round, N_WORDS));
    check("cuMemcpyDtoH", read_back(words, memory, sizeof words));
    for (int i = 0; i < N_WORDS; ++i) {
      if (words[i] != round) {
        fprintf(stderr, "linger: round %u, word %d is %u\n", round, i, words[i]);
        return 1;
      }
    }
    FILE* file = fopen(argv[1], "w");
    if (file == NULL) return 1;
    fprintf(file, "%u\n", round);
    fclose(file);
  }
}
