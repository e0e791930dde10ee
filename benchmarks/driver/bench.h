// SPDX-License-Identifier: Apache-2.0
// What the driver-level measurements share: a context, an empty kernel, checked calls, timing.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace bench {

constexpr size_t KIB = 1 << 10, MIB = 1 << 20;

void must(CUresult result, const char* call);
#define MUST(call) bench::must(call, #call)

// How much is measured: 1 is what a result needs, less is for a look or a test.
class Effort {
 public:
  explicit Effort(double share) : share_(share) {}
  int of(int n) const { return std::max(1, static_cast<int>(n * share_)); }

 private:
  double share_;
};

// The primary context of device 0, and a module with an empty kernel.
class Gpu {
 public:
  Gpu();
  void launch(CUstream stream = nullptr) const {
    MUST(cuLaunchKernel(nothing_, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr));
  }
  CUfunction nothing() const { return nothing_; }
  CUcontext context() const { return context_; }

 private:
  CUcontext context_ = nullptr;
  CUfunction nothing_ = nullptr;
};

using Clock = std::chrono::steady_clock;

inline double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> values);

// One line, as benchmarks/figures.py reads it.
void figure(const char* name, double value, const char* unit);

// The median time of a call. Calls are timed `batch` at a time, so that the clock is not what is
// measured; `between` runs untimed after each batch.
template <typename Call, typename Between>
double time_calls_us(int n_batches, int batch, Call call, Between between) {
  std::vector<double> times_us;
  for (int i = 0; i < n_batches; ++i) {
    const auto begin = Clock::now();
    for (int j = 0; j < batch; ++j) call();
    times_us.push_back(us_since(begin) / batch);
    between();
  }
  return median(std::move(times_us));
}

template <typename Call>
double time_calls_us(int n_batches, int batch, Call call) {
  return time_calls_us(n_batches, batch, call, [] {});
}

// Each measures what its subject of benchmarks/rows.toml lists, and prints a figure for each row.
void launches(const Gpu& gpu, Effort effort);
void waits(const Gpu& gpu, Effort effort);
void queries(const Gpu& gpu, Effort effort);
void runtime(const Gpu& gpu, Effort effort);
void small_copies(const Gpu& gpu, Effort effort);
void pinned_copies(const Gpu& gpu, Effort effort);
void pageable_copies(const Gpu& gpu, Effort effort);
void memory(const Gpu& gpu, Effort effort);
void graphs(const Gpu& gpu, Effort effort);
void threads(const Gpu& gpu, Effort effort);
void records(const Gpu& gpu, Effort effort);
void counted(const Gpu& gpu, Effort effort);
void counted_copies(const Gpu& gpu, Effort effort);
void busy(const Gpu& gpu, Effort effort);
void checked(const Gpu& gpu, Effort effort);

}  // namespace bench
