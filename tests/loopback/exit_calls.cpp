// SPDX-License-Identifier: Apache-2.0
// Calls from a destructor after main, as libraries make them: they answer, and write into nobody's
// memory. Ends with "done"; says what was overwritten.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

// Of the sizes that a thread's own things may have had.
class Blocks {
 public:
  Blocks() {
    for (size_t bytes = 8; bytes <= 256; bytes += 8) {
      for (int i = 0; i < 64; ++i) {
        blocks_.emplace_back(std::make_unique<char[]>(bytes), bytes);
        std::memset(blocks_.back().first.get(), 0x5a, bytes);
      }
    }
  }
  bool are_untouched() const {
    for (const auto& [block, bytes] : blocks_) {
      for (size_t i = 0; i < bytes; ++i) {
        if (block[i] != 0x5a) return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::pair<std::unique_ptr<char[]>, size_t>> blocks_;
};

struct AfterMain {
  ~AfterMain() {
    if (context == nullptr) return;
    const Blocks blocks;
    CUdeviceptr memory = 0;
    CUstream stream = nullptr;
    CUresult results[6];
    results[0] = cuCtxSetCurrent(context);
    results[1] = cuCtxPushCurrent(context);
    results[2] = cuMemAlloc(&memory, 1 << 20);
    results[3] = cuMemsetD8Async(memory, 1, 1 << 20, CU_STREAM_PER_THREAD);
    results[4] = cuStreamSynchronize(CU_STREAM_PER_THREAD);
    results[5] = cuStreamCreate(&stream, 0);
    for (const CUresult result : results) {
      // A driver that has ended before says so.
      if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED) continue;
      std::printf("a call after main: CUDA error %d\n", result);
    }
    std::puts(blocks.are_untouched() ? "done" : "memory of the program was overwritten");
    std::fflush(stdout);
  }
  CUcontext context = nullptr;
} after_main;

void check(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::printf("CUDA error %d\n", result);
  std::exit(1);
}

}  // namespace

int main() {
  CUdevice device;
  check(cuInit(0));
  check(cuDeviceGet(&device, 0));
  check(cuDevicePrimaryCtxRetain(&after_main.context, device));
  check(cuCtxSetCurrent(after_main.context));
  check(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}
