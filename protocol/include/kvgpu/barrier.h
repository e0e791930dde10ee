// SPDX-License-Identifier: Apache-2.0
// Memory order on words that two processes (one of them perhaps hostile) share. Every access to a
// ring goes through these, but for what a producer writes before it commits; each use names its
// pair. No locked read-modify-write of them: a peer may map the memory uncached.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

namespace kvgpu {

inline uint64_t load_acquire(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

inline uint64_t load_relaxed(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_relaxed);
}

inline void store_release(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

inline void store_relaxed(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_relaxed);
}

// Between "store my flag" and "look at the other side's word": the one place that needs StoreLoad.
// A locked instruction, as gcc makes of an atomic_thread_fence: clang's mfence takes twice the
// time.
inline void fence_full() { __asm__ __volatile__("lock; orl $0, (%%rsp)" ::: "memory", "cc"); }

inline void compiler_fence() { __asm__ __volatile__("" ::: "memory"); }

// Write-combining memory (a region that the guest cannot have write-back) knows no order of stores,
// none of loads, and none of both, but by these.
inline void store_fence() { __builtin_ia32_sfence(); }
inline void load_fence() { __builtin_ia32_lfence(); }
inline void memory_fence() { __builtin_ia32_mfence(); }

inline void cpu_relax() { __builtin_ia32_pause(); }

// This line will be written soon, and another processor may have it: a hint, which processors
// without the instruction pass over. (__builtin_prefetch asks for a line to write only where the
// compiler is told that all processors have it, else for one to read.)
inline void prefetch_to_write(const void* line) {
  __asm__("prefetchw %0" ::"m"(*static_cast<const char*>(line)));
}
inline void prefetch_to_read(const void* line) { __builtin_prefetch(line); }

// Copy 8-byte words out of shared memory, each loaded exactly once: what was checked is what is
// used.
inline void copy_words_in(uint64_t* to, const uint64_t* from, size_t n_words) {
  for (size_t i = 0; i < n_words; ++i) to[i] = load_relaxed(from[i]);
}

}  // namespace kvgpu
