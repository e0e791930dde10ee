// SPDX-License-Identifier: Apache-2.0
// Large copies between shared and pageable memory by several processors: one of them moves about
// 10 GB/s, a GPU's link five times as much.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace kvgpu::memory {

using Copy = void (*)(void* to, const void* from, size_t bytes);

// A caller and its helpers. One copy at a time is shared out: who comes meanwhile copies alone.
class CopyCrew {
 public:
  static constexpr size_t PART_BYTES = 128 << 10;
  static constexpr unsigned MAX_HELPERS = 3;

  // Starts its threads with the first copy that is worth it. The threads live as long as the
  // process: the crew must, too.
  explicit CopyCrew(unsigned n_helpers) : n_helpers_(n_helpers) {}
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // The process's own, with helpers for half of the processors that it may use.
  static CopyCrew& get();

  // As `copy` does alone, in parts that may be copied in any order.
  void run(Copy copy, void* to, const void* from, size_t bytes);

 private:
  struct Job {  // constant while parts are left or under way
    Copy copy = nullptr;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
  };

  void start();
  void help();
  bool copy_one();  // false: no part is left

  const unsigned n_helpers_;
  bool is_started_ = false;  // under mutex_
  std::mutex mutex_;         // of who shares a copy out
  Job job_;
  // Parts that nobody has taken. Release by run(), acquire by who takes one.
  alignas(64) std::atomic<uint64_t> n_left_{0};
  // Parts that are copied. Release by who copies, acquire by run().
  alignas(64) std::atomic<uint64_t> n_copied_{0};
  std::atomic<uint32_t> n_asleep_{0};
  std::atomic<uint32_t> call_{0};  // changes to wake who sleeps
};

}  // namespace kvgpu::memory
