// SPDX-License-Identifier: Apache-2.0
// Copies between host and device: time of the small ones, bandwidth of the others.
#include <cstdio>
#include <cstring>
#include <string>

#include "bench.h"

namespace bench {

namespace {

struct Size {
  const char* name;
  size_t bytes;
  int n;  // copies of one measurement
};
constexpr size_t LARGE = 256 * MIB;

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { MUST(cuMemAlloc(&address, bytes)); }
  ~DeviceMemory() { MUST(cuMemFree(address)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  CUdeviceptr address = 0;
};

template <typename Copy>
void bandwidth(const std::string& name, const Size& size, Effort effort, Copy copy) {
  const int n = effort.of(size.n);
  copy();
  MUST(cuStreamSynchronize(nullptr));
  const auto begin = Clock::now();
  for (int i = 0; i < n; ++i) copy();
  MUST(cuStreamSynchronize(nullptr));
  const double bytes = static_cast<double>(size.bytes) * n;
  figure((name + "_" + size.name).c_str(), bytes / (us_since(begin) * 1e3), "GB/s");
}

}  // namespace

void small_copies(const Gpu&, Effort effort) {
  static constexpr Size SIZES[] = {{"64b", 64, 4000}, {"4kib", 4 * KIB, 4000}};
  const DeviceMemory device(4 * KIB);
  std::vector<char> host(4 * KIB, 1);
  for (const Size& size : SIZES) {
    const auto up = [&] { MUST(cuMemcpyHtoD(device.address, host.data(), size.bytes)); };
    const auto down = [&] { MUST(cuMemcpyDtoH(host.data(), device.address, size.bytes)); };
    up();
    const std::string name = size.name;
    figure(("htod_" + name).c_str(), time_calls_us(effort.of(size.n), 1, up), "us");
    figure(("dtoh_" + name).c_str(), time_calls_us(effort.of(size.n), 1, down), "us");
  }
}

// As counted() launches, with pieces of the slab that the GPU has not given back yet.
void counted_copies(const Gpu&, Effort) {
  constexpr int N_BATCHES = 20, IN_STREAM = 100;
  const DeviceMemory device(KIB);
  const std::vector<char> host(KIB, 1);
  const auto copy = [&] { MUST(cuMemcpyHtoD(device.address, host.data(), 64)); };
  (void)time_calls_us(N_BATCHES, IN_STREAM, copy, [] { MUST(cuStreamSynchronize(nullptr)); });
  figure("counted", N_BATCHES * IN_STREAM, "calls");
}

void pinned_copies(const Gpu&, Effort effort) {
  static constexpr Size SIZES[] = {
      {"64kib", 64 * KIB, 5000}, {"1mib", MIB, 1000}, {"256mib", LARGE, 10}};
  const DeviceMemory device(LARGE);
  void* host = nullptr;
  MUST(cuMemAllocHost(&host, LARGE));
  std::memset(host, 1, LARGE);
  for (const Size& size : SIZES) {
    bandwidth("htod_pinned", size, effort,
              [&] { MUST(cuMemcpyHtoDAsync(device.address, host, size.bytes, nullptr)); });
    bandwidth("dtoh_pinned", size, effort,
              [&] { MUST(cuMemcpyDtoHAsync(host, device.address, size.bytes, nullptr)); });
  }
  MUST(cuMemFreeHost(host));
}

void pageable_copies(const Gpu&, Effort effort) {
  static constexpr Size SIZES[] = {{"1mib", MIB, 500}, {"256mib", LARGE, 4}};
  const DeviceMemory device(LARGE);
  std::vector<char> host(LARGE, 1);
  for (const Size& size : SIZES) {
    bandwidth("htod_pageable", size, effort,
              [&] { MUST(cuMemcpyHtoD(device.address, host.data(), size.bytes)); });
    bandwidth("dtoh_pageable", size, effort,
              [&] { MUST(cuMemcpyDtoH(host.data(), device.address, size.bytes)); });
  }
}

// A session that is one of many: it computes for a while and looks at every result.
void checked(const Gpu& gpu, Effort effort) {
  constexpr size_t N = 64 * KIB;
  const DeviceMemory device(N * sizeof(uint32_t));
  std::vector<uint32_t> host(N);
  int right = 0;
  const int n = effort.of(200);
  for (int i = 0; i < n; ++i) {
    const auto value = static_cast<uint32_t>(i + 1);
    MUST(cuMemsetD32Async(device.address, value, N, nullptr));
    gpu.launch();
    MUST(cuMemcpyDtoH(host.data(), device.address, N * sizeof(uint32_t)));
    right += std::all_of(host.begin(), host.end(), [=](uint32_t v) { return v == value; }) ? 1 : 0;
  }
  figure("right", static_cast<double>(right) / n, "share");
}

}  // namespace bench
