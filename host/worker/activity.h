// SPDX-License-Identifier: Apache-2.0
// What a session has done, for `kvgpu session show` (PROTOCOL.md §4, ACTIVITY).
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <vector>

namespace kvgpu::worker {

class Session;

inline constexpr uint16_t MAX_OPCODE = 1023;

class Activity {
 public:
  struct Failure {
    const char* call = nullptr;
    CUresult error = CUDA_SUCCESS;
    time_t at_s = 0;
    uint64_t n = 0;  // with those before it
  };

  // By the reader only, so nobody adds at the same time.
  void count(uint16_t opcode) {
    std::atomic<uint64_t>& n = n_calls_[opcode];
    n.store(n.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  uint64_t n_calls(uint16_t opcode) const {
    return n_calls_[opcode].load(std::memory_order_relaxed);
  }

  void fail(const char* call, CUresult error) {
    const std::lock_guard lock(mutex_);
    last_failure_ = {call, error, std::time(nullptr), last_failure_.n + 1};
  }
  Failure last_failure() const {
    const std::lock_guard lock(mutex_);
    return last_failure_;
  }

 private:
  std::array<std::atomic<uint64_t>, MAX_OPCODE + 1> n_calls_{};
  mutable std::mutex mutex_;
  Failure last_failure_;
};

// The payload of ACTIVITY.
std::vector<std::byte> report_activity(const Session& session);

}  // namespace kvgpu::worker
