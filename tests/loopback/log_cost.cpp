// SPDX-License-Identifier: Apache-2.0
// log_cost N: gives a stream N sets of memory, and counts what the library formats, writes and
// times for them: its vsnprintf(), write() and clock_gettime() are ours, since an executable's
// names come first.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace {

std::atomic<long> n_formatted{0}, n_written{0}, n_timed{0};

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("FAILED %s: %d\n", what, result);
  std::exit(1);
}
#define MUST(call) must(call, #call)

}  // namespace

extern "C" __attribute__((visibility("default"))) int vsnprintf(char* to, size_t n_bytes,
                                                                const char* format,
                                                                va_list arguments) noexcept {
  static auto* const real = next<int(char*, size_t, const char*, va_list)>("vsnprintf");
  ++n_formatted;
  return real(to, n_bytes, format, arguments);
}

extern "C" __attribute__((visibility("default"))) ssize_t write(int fd, const void* data,
                                                                size_t n_bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  ++n_written;
  return real(fd, data, n_bytes);
}

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                                    timespec* time) noexcept {
  static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
  ++n_timed;
  return real(clock, time);
}

int main(int argc, char** argv) {
  const int n = argc > 1 ? std::atoi(argv[1]) : 1000;
  CUcontext context;
  CUdeviceptr memory;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemAlloc(&memory, 16));
  MUST(cuMemsetD8Async(memory, 1, 16, nullptr));
  MUST(cuCtxSynchronize());
  const long formatted = n_formatted, written = n_written, timed = n_timed;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < n; ++i) MUST(cuMemsetD8Async(memory, 1, 16, nullptr));
  const long own_timed = 1;  // above
  const long all_timed = n_timed - timed - own_timed;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  std::printf("formatted %ld\nwritten %ld\ntimed %ld\n# %.3f us a call\n", n_formatted - formatted,
              n_written - written, all_timed, took.count() / n);
  MUST(cuCtxSynchronize());
  MUST(cuMemFree(memory));
  MUST(cuDevicePrimaryCtxRelease(0));
  return 0;
}
