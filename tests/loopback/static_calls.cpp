// SPDX-License-Identifier: Apache-2.0
// Work of the driver before main, by a static initialiser, and after it, by its destructor; with an
// argument the process ends by exit in a host function meanwhile. Ends with "done".
#include <cuda.h>

#include <cstdio>
#include <cstdlib>

namespace {

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("%s: CUDA error %d\n", what, result);
  std::_Exit(1);
}

class Early {
 public:
  Early() {
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    check(cuMemAlloc(&memory_, BYTES), "cuMemAlloc");
    check(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuMemsetD8Async(memory_, 5, BYTES, stream_), "cuMemsetD8Async");
  }
  ~Early() {
    // A driver that has ended before says so, and one whose host function this is.
    const CUresult result = cuMemFree(memory_);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED &&
        result != CUDA_ERROR_NOT_PERMITTED) {
      std::printf("cuMemFree after main: CUDA error %d\n", result);
    }
    std::puts("done");
    std::fflush(stdout);
  }
  void use() {
    unsigned char last = 0;
    check(cuStreamSynchronize(stream_), "cuStreamSynchronize");
    check(cuMemcpyDtoH(&last, memory_ + BYTES - 1, 1), "cuMemcpyDtoH");
    std::printf("set before main: %d\n", last);
  }
  CUstream stream() const { return stream_; }

 private:
  static constexpr size_t BYTES = 1 << 20;
  CUcontext context_ = nullptr;
  CUdeviceptr memory_ = 0;
  CUstream stream_ = nullptr;
} early;

}  // namespace

int main(int argc, char**) {
  early.use();
  if (argc < 2) return 0;
  const CUhostFn leave = [](void*) { std::exit(0); };
  check(cuLaunchHostFunc(early.stream(), leave, nullptr), "cuLaunchHostFunc");
  static_cast<void>(cuStreamSynchronize(early.stream()));
  std::puts("exit in a host function did not end the process");
  return 1;
}
