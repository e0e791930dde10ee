// SPDX-License-Identifier: Apache-2.0
// Many threads that copy at once.
#include <algorithm>
#include <memory>
#include <thread>

#include "support.h"

TEST_CASE("memory_threads: all read more than the slab holds into pageable memory") {
  const Gpu gpu;
  constexpr int THREADS = 12, N = 4 << 20;  // ints: 16 MiB each
  std::vector<std::unique_ptr<Ints>> data;
  for (int i = 0; i < THREADS; ++i) data.push_back(std::make_unique<Ints>(N, i));
  std::vector<int> n_wrong(THREADS, -1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < THREADS; ++i) {
    threads.emplace_back([&, i] {
      if (cuCtxSetCurrent(gpu.context) != CUDA_SUCCESS) return;
      for (int round = 0; round < 3; ++round) {
        std::vector<int> host(N);
        if (cuMemcpyDtoH(host.data(), data[i]->dptr, N * sizeof(int)) != CUDA_SUCCESS) return;
        n_wrong[i] = static_cast<int>(
            std::ranges::count_if(host, [&](int value) { return value != static_cast<int>(i); }));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(n_wrong == std::vector(THREADS, 0));
}
