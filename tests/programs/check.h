// SPDX-License-Identifier: Apache-2.0
// Checks of the test programs: one line each on standard output, exit code 0 or 1.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

/// Stop with a message when a call fails that has to work for anything else to make sense.
#define CHECK(call)                                                                            \
  do {                                                                                         \
    const cudaError_t error_ = (call);                                                         \
    if (error_ != cudaSuccess) {                                                               \
      printf("FAILED %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (false)

inline bool& all_passed() {
  static bool passed = true;
  return passed;
}

/// Report one check with a number that identifies its result.
inline void report(const char* name, bool passed, uint64_t checksum = 0) {
  printf("%s: %s (checksum %016llx)\n", name, passed ? "ok" : "WRONG",
         static_cast<unsigned long long>(checksum));
  fflush(stdout);
  all_passed() = all_passed() && passed;
}

/// Report whether a call gave the expected error.
inline void expect(const char* name, cudaError_t got, cudaError_t wanted) {
  if (got != wanted)
    printf("  got %s, expected %s\n", cudaGetErrorName(got), cudaGetErrorName(wanted));
  report(name, got == wanted, static_cast<uint64_t>(wanted));
}

/// FNV-1a.
inline uint64_t checksum(const void* data, size_t n_bytes) {
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < n_bytes; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
  return hash;
}

/// The program's last line and its exit code.
inline int finish(const char* program) {
  printf(all_passed() ? "%s: all results correct\n" : "%s: some results are wrong\n", program);
  return all_passed() ? 0 : 1;
}
