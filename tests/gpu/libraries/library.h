// SPDX-License-Identifier: Apache-2.0
// For the programs on top of NVIDIA's libraries: inputs, status checks, comparison with a result
// computed on the CPU. Build: run.sh PART=libraries.
#pragma once

#include <cmath>
#include <vector>

#include "../../programs/check.h"

/// Every library's status is 0 on success.
#define CALL(call)                                                          \
  do {                                                                      \
    const int status_ = static_cast<int>(call);                             \
    if (status_ != 0) {                                                     \
      printf("FAILED %s:%d: %s: %d\n", __FILE__, __LINE__, #call, status_); \
      exit(1);                                                              \
    }                                                                       \
  } while (false)

/// The same numbers on every machine, in [-1, 1).
template <class T>
std::vector<T> numbers(size_t n, uint64_t state = 1) {
  std::vector<T> values(n);
  for (T& value : values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<T>(static_cast<double>(state >> 11) / (1ull << 52) - 1.0);
  }
  return values;
}

/// Device memory that holds `n` values.
template <class T>
class Device {
 public:
  explicit Device(size_t n) : n_(n) { CHECK(cudaMalloc(&data_, n * sizeof(T))); }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    CHECK(cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* get() const { return data_; }
  size_t n_bytes() const { return n_ * sizeof(T); }
  std::vector<T> read() const {
    std::vector<T> values(n_);
    CHECK(cudaMemcpy(values.data(), data_, n_bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t n_;
};

template <class T, class U>
void expect_near(const char* name, const std::vector<T>& got, const std::vector<U>& wanted,
                 double tolerance) {
  double worst = got.size() == wanted.size() ? 0 : INFINITY;
  for (size_t i = 0; i < got.size() && i < wanted.size(); ++i) {
    const double off = std::fabs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    worst = off <= worst ? worst : off;  // NaN stays
  }
  if (!(worst <= tolerance)) printf("  off by %g\n", worst);
  report(name, worst <= tolerance);
}

/// Column-major product of an m×k and a k×n matrix.
template <class T>
std::vector<double> product(const std::vector<T>& a, const std::vector<T>& b, int m, int n, int k) {
  std::vector<double> c(static_cast<size_t>(m) * n);
  for (int j = 0; j < n; ++j)
    for (int l = 0; l < k; ++l)
      for (int i = 0; i < m; ++i)
        c[i + static_cast<size_t>(j) * m] +=
            static_cast<double>(a[i + static_cast<size_t>(l) * m]) *
            static_cast<double>(b[l + static_cast<size_t>(j) * k]);
  return c;
}
