// SPDX-License-Identifier: Apache-2.0
// What calls cost, seen by the caller. Prints "name value unit" lines; the same binary measures a
// native and a remoted GPU. Asserts nothing.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

__global__ void nothing() {}

static double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

static void line(const char* name, double value, const char* unit) {
  printf("%s %.3f %s\n", name, value, unit);
  fflush(stdout);
}

/// Median and mean over `n` calls, each timed by itself.
template <class F>
static void time_each(const char* name, int n, F call) {
  std::vector<double> times_us(static_cast<size_t>(n));
  for (double& time_us : times_us) {
    const double start = now_us();
    call();
    time_us = now_us() - start;
  }
  double sum_us = 0;
  for (const double time_us : times_us) sum_us += time_us;
  std::nth_element(times_us.begin(), times_us.begin() + n / 2, times_us.end());
  line((std::string(name) + "_median").c_str(), times_us[static_cast<size_t>(n / 2)], "us");
  line((std::string(name) + "_mean").c_str(), sum_us / n, "us");
}

static void launches() {
  constexpr int N = 10'000, BATCH = 500;
  for (int i = 0; i < 100; ++i) nothing<<<1, 32>>>();
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  // The queue is emptied now and then, so that its limit is not what is measured.
  int since_sync = 0;
  time_each("launch_call", N, [&] { nothing<<<1, 32>>>(); });
  CHECK(cudaDeviceSynchronize());
  const double start = now_us();
  for (int i = 0; i < N; ++i) {
    nothing<<<1, 32>>>();
    if (++since_sync % BATCH == 0) CHECK(cudaDeviceSynchronize());
  }
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaGetLastError());
  line("launches", N / ((now_us() - start) / 1e6), "1/s");
  time_each("launch_and_sync", 2'000, [] {
    nothing<<<1, 32>>>();
    CHECK(cudaStreamSynchronize(nullptr));
  });
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  time_each("event_record_and_sync", 2'000, [&] {
    CHECK(cudaEventRecord(event, nullptr));
    CHECK(cudaEventSynchronize(event));
  });
  CHECK(cudaEventDestroy(event));
  time_each("malloc_and_free_1mib", 200, [] {
    void* pointer;
    CHECK(cudaMalloc(&pointer, 1 << 20));
    CHECK(cudaFree(pointer));
  });
}

static void bandwidth(const char* name, void* host, void* device, size_t n_bytes, bool to_device,
                      int n) {
  const auto copy = [&] {
    if (to_device)
      CHECK(cudaMemcpyAsync(device, host, n_bytes, cudaMemcpyHostToDevice, nullptr));
    else
      CHECK(cudaMemcpyAsync(host, device, n_bytes, cudaMemcpyDeviceToHost, nullptr));
  };
  copy();
  CHECK(cudaStreamSynchronize(nullptr));
  const double start = now_us();
  for (int i = 0; i < n; ++i) copy();
  CHECK(cudaStreamSynchronize(nullptr));
  line(name, static_cast<double>(n_bytes) * n / ((now_us() - start) * 1e3), "GB/s");
}

int main() {
  constexpr size_t LARGE = 256u << 20;
  launches();
  void *device, *pinned;
  CHECK(cudaMalloc(&device, LARGE));
  CHECK(cudaMallocHost(&pinned, LARGE));
  memset(pinned, 1, LARGE);
  bandwidth("htod_pinned_64kib", pinned, device, 64 << 10, true, 500);
  bandwidth("dtoh_pinned_64kib", pinned, device, 64 << 10, false, 500);
  bandwidth("htod_pinned_1mib", pinned, device, 1 << 20, true, 200);
  bandwidth("dtoh_pinned_1mib", pinned, device, 1 << 20, false, 200);
  bandwidth("htod_pinned_256mib", pinned, device, LARGE, true, 4);
  bandwidth("dtoh_pinned_256mib", pinned, device, LARGE, false, 4);
  CHECK(cudaFreeHost(pinned));
  std::vector<char> pageable(LARGE, 1);
  bandwidth("htod_pageable_256mib", pageable.data(), device, LARGE, true, 4);
  bandwidth("dtoh_pageable_256mib", pageable.data(), device, LARGE, false, 4);
  CHECK(cudaFree(device));
  return 0;
}
