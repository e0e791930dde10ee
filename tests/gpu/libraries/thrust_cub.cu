// SPDX-License-Identifier: Apache-2.0
// Thrust and CUB, which are compiled into the program: sorts, scans, reductions, selections.
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

#include <algorithm>
#include <cub/cub.cuh>
#include <numeric>

#include "library.h"

namespace {

constexpr int N = 1 << 20;

struct IsOdd {
  __host__ __device__ bool operator()(int value) const { return value % 2 != 0; }
};

std::vector<int> integers() {
  std::vector<int> values(N);
  const auto random = numbers<double>(N);
  std::transform(random.begin(), random.end(), values.begin(),
                 [](double x) { return static_cast<int>(x * 100'000); });
  return values;
}

bool same(const thrust::device_vector<int>& got, const std::vector<int>& wanted) {
  const thrust::host_vector<int> host = got;
  return std::equal(host.begin(), host.end(), wanted.begin(), wanted.end());
}

void thrust_algorithms() {
  std::vector<int> wanted = integers();
  thrust::device_vector<int> values(wanted.begin(), wanted.end());
  const long total = std::accumulate(wanted.begin(), wanted.end(), 0l);
  report("thrust::reduce", thrust::reduce(values.begin(), values.end(), 0l) == total);
  thrust::device_vector<int> scanned(N);
  thrust::inclusive_scan(values.begin(), values.end(), scanned.begin());
  std::vector<int> wanted_scan(N);
  std::partial_sum(wanted.begin(), wanted.end(), wanted_scan.begin());
  report("thrust::inclusive_scan", same(scanned, wanted_scan));
  thrust::sort(values.begin(), values.end());
  std::sort(wanted.begin(), wanted.end());
  report("thrust::sort", same(values, wanted));
  values.erase(thrust::unique(values.begin(), values.end()), values.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  report("thrust::unique", same(values, wanted));
}

template <class Call>
void with_storage(Call call) {
  size_t n_bytes = 0;
  CHECK(call(nullptr, n_bytes));
  Device<char> storage(n_bytes);
  CHECK(call(storage.get(), n_bytes));
  CHECK(cudaDeviceSynchronize());
}

void cub_algorithms() {
  std::vector<int> wanted = integers();
  const Device<int> in(wanted), out(N), n_selected(1);
  with_storage([&](void* storage, size_t& n) {
    return cub::DeviceSelect::If(storage, n, in.get(), out.get(), n_selected.get(), N, IsOdd{});
  });
  const auto n_odd = std::count_if(wanted.begin(), wanted.end(), IsOdd{});
  report("cub::DeviceSelect::If", n_selected.read()[0] == n_odd);
  with_storage([&](void* storage, size_t& n) {
    return cub::DeviceRadixSort::SortKeysDescending(storage, n, in.get(), out.get(), N);
  });
  std::sort(wanted.rbegin(), wanted.rend());
  report("cub::DeviceRadixSort", out.read() == wanted);
  const Device<int> counts(16);
  with_storage([&](void* storage, size_t& n) {
    return cub::DeviceHistogram::HistogramEven(storage, n, in.get(), counts.get(), 17, -100'000,
                                               100'000, N);
  });
  const auto found = counts.read();
  report("cub::DeviceHistogram", std::accumulate(found.begin(), found.end(), 0) == N,
         checksum(found.data(), counts.n_bytes()));
}

}  // namespace

int main() {
  thrust_algorithms();
  cub_algorithms();
  return finish("thrust_cub");
}
