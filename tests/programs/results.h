// SPDX-License-Identifier: Apache-2.0
// Programs that print what kernels computed, for comparison with another machine's run: per kernel
// a line with a checksum of all result bytes, or, where hardware approximates, the results.
// RAW_RESULTS=FILE in the environment: all results go to FILE as well, to see what differs where a
// checksum does.
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include "check.h"

/// SplitMix64: the same numbers on every machine.
inline uint64_t scrambled(uint64_t n) {
  n += 0x9e3779b97f4a7c15ull;
  n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9ull;
  n = (n ^ n >> 27) * 0x94d049bb133111ebull;
  return n ^ n >> 31;
}

inline void write_raw(const char* name, const void* data, size_t n_bytes) {
  static FILE* const file = getenv("RAW_RESULTS") ? fopen(getenv("RAW_RESULTS"), "wb") : nullptr;
  if (file == nullptr) return;
  fprintf(file, "%s %zu\n", name, n_bytes);
  fwrite(data, 1, n_bytes, file);
}

/// Report a kernel's results, which every machine computes alike.
template <class T>
void print_checksum(const char* name, const std::vector<T>& results) {
  const size_t n_bytes = results.size() * sizeof(T);
  write_raw(name, results.data(), n_bytes);
  printf("%s: %016llx\n", name, static_cast<unsigned long long>(checksum(results.data(), n_bytes)));
}

/// Report floating-point results that may differ by `n_ulp` units in the last place.
template <class T>
void print_values(const char* name, int n_ulp, const std::vector<T>& results) {
  write_raw(name, results.data(), results.size() * sizeof(T));
  printf("%s (f%zu, %d ulp):", name, 8 * sizeof(T), n_ulp);
  for (const T& result : results) {
    uint64_t bits = 0;
    memcpy(&bits, &result, sizeof(T));
    printf(" %llx", static_cast<unsigned long long>(bits));
  }
  printf("\n");
}

/// Memory of the device that holds a copy of `values`.
template <class T>
T* on_device(const std::vector<T>& values) {
  T* memory;
  CHECK(cudaMalloc(&memory, values.size() * sizeof(T)));
  CHECK(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

/// What is in the memory, which is freed.
template <class T>
std::vector<T> taken_back(T* memory, size_t n) {
  std::vector<T> values(n);
  CHECK(cudaMemcpy(values.data(), memory, n * sizeof(T), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(memory));
  return values;
}

/// The bit pattern of a T.
template <class T>
T from_bits(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}
