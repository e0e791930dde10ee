// SPDX-License-Identifier: Apache-2.0
// What the program waits for, as far as the worker can tell: the number that the GPU was asked for
// last (add_mark()). While it is to come the reader does not sleep for a while: from sleep it wakes
// 60 to 200 µs late (one H200, waits of 3 ms), and what the program launches next would wait for
// it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "kvgpu/barrier.h"

namespace kvgpu::worker {

class LastMark {
 public:
  // As long as a guest's thread looks without sleeping.
  static constexpr std::chrono::milliseconds LOOKS_FOR{10};

  void note(const uint64_t* word, uint64_t number) {
    number_.store(number, std::memory_order_relaxed);
    word_.store(word, std::memory_order_relaxed);
  }
  // Of two marks at once it may mix up word and number: then the reader sleeps earlier or later.
  bool is_outstanding() const {
    const uint64_t* const word = word_.load(std::memory_order_relaxed);
    return word != nullptr && load_relaxed(*word) < number_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<const uint64_t*> word_{nullptr};  // session memory: there as long as the worker
  std::atomic<uint64_t> number_{0};
};

}  // namespace kvgpu::worker
