/* SPDX-License-Identifier: Apache-2.0
 * How long does a call take whose worker sleeps? `wakeup N` makes N calls with a pause before each
 * and prints their median in microseconds; then the process waits until it is killed. Ends with 1
 * at the first wrong value. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

enum { MAX_CALLS = 1000, PAUSE_US = 50 * 1000 };

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  const int n_calls = argc == 2 ? atoi(argv[1]) : 0;
  if (n_calls < 1 || n_calls > MAX_CALLS) return 2;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "wakeup: %s\n", dlerror());
    return 1;
  }
  int (*init)(unsigned) = entry("cuInit");
  int (*retain)(void**, int) = entry("cuDevicePrimaryCtxRetain");
  int (*set_current)(void*) = entry("cuCtxSetCurrent");
  int (*alloc)(uint64_t*, size_t) = entry("cuMemAlloc_v2");
  int (*fill)(uint64_t, unsigned, size_t) = entry("cuMemsetD32_v2");
  int (*read_back)(void*, uint64_t, size_t) = entry("cuMemcpyDtoH_v2");
  void* context = NULL;
  uint64_t memory = 0;
  check("cuInit", init(0));
  check("cuDevicePrimaryCtxRetain", retain(&context, 0));
  check("cuCtxSetCurrent", set_current(context));
  check("cuMemAlloc", alloc(&memory, 4));
  static double took_us[MAX_CALLS];
  for (int i = 0; i < n_calls; ++i) {
    uint32_t word = 0;
    usleep(PAUSE_US);
    const double begin_us = now_us();
    check("cuMemsetD32", fill(memory, (unsigned)i, 1));
    check("cuMemcpyDtoH", read_back(&word, memory, sizeof word));
    took_us[i] = now_us() - begin_us;
    if (word != (uint32_t)i) {
      fprintf(stderr, "wakeup: call %d: read %u\n", i, word);
      return 1;
    }
  }
  qsort(took_us, (size_t)n_calls, sizeof took_us[0], compare);
  printf("%.0f\n", took_us[n_calls / 2]);
  fflush(stdout);
  for (;;) pause();
}
