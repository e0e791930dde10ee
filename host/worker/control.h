// SPDX-License-Identifier: Apache-2.0
// The socket to kvgpud (PROTOCOL.md §4, §5). Trusted: kvgpud is ours.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "kvgpu/control.h"

namespace kvgpu::worker {

inline constexpr int CONTROL_FD = 3, REGION_FD = 4, KICK_FD = 5;

class Control {
 public:
  explicit Control(uint32_t session_id) : session_id_(session_id) {}

  void ready(uint32_t n_devices);
  // Says why the session cannot start or ends; CUresult is what the guest will see.
  static void report_failure(CUresult error, const std::string& reason);

  // Pinned memory for the session. False: none left. Waits for kvgpud.
  [[nodiscard]] bool allocate_extent(uint64_t bytes, control::Extent* extent);
  void free_extent(uint64_t offset);

  // Reads until kvgpud closes the socket, which means: end.
  void serve();

 private:
  static bool send(control::Type type, uint32_t id, const void* payload, uint32_t len_bytes);

  const uint32_t session_id_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<uint32_t, control::Extent> answers_;
  uint32_t next_request_ = 1;
};

}  // namespace kvgpu::worker
