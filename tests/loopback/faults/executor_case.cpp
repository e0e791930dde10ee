// SPDX-License-Identifier: Apache-2.0
// On the software GPU only: NVIDIA's driver holds a lock of its own in cuMemFreeHost, and then
// nothing helps.
#include <atomic>
#include <thread>

#include "../cases/support.h"

TEST_CASE("executor: a call that blocks in the worker's driver stops no other thread") {
  const Gpu gpu;
  const Ints other(1);
  CUstream stuck, free_stream;
  CU(cuStreamCreate(&stuck, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
  Gate gate(gpu, stuck);
  void* pinned = nullptr;
  CU(cuMemHostAlloc(&pinned, 64, 0));
  std::atomic<bool> freed{false};
  std::thread freeing([&] {
    cuCtxSetCurrent(gpu.context);
    cuMemFreeHost(pinned);  // waits for the whole context
    freed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 1; i <= 20; ++i) {
    add_one(gpu, other, free_stream);
    CU(cuStreamSynchronize(free_stream));
  }
  CHECK_FALSE(freed);
  gate.open();
  freeing.join();
  CHECK(freed);
  CHECK(other.read()[0] == 20);
}
