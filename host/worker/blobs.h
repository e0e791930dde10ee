// SPDX-License-Identifier: Apache-2.0
// Images on their way from the guest, in private memory: nothing parses what the guest can still
// change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "kvgpu/records.h"

namespace kvgpu::worker {

class Blobs {
 public:
  // Chunks come in order, the first has offset 0. False: the guest broke the protocol.
  [[nodiscard]] bool write(wire::Handle handle, uint64_t total_bytes, uint64_t offset,
                           std::span<const std::byte> chunk) {
    const std::lock_guard lock(mutex_);
    if (offset == 0 && blobs_.size() >= MAX_BLOBS && !blobs_.contains(handle)) return false;
    auto& bytes = blobs_[handle];
    if (offset == 0) {
      held_bytes_ -= bytes.size();
      bytes.clear();
    }
    // In order, so that memory is taken for what has come and not for what was announced.
    if (offset != bytes.size() || chunk.size() > total_bytes - offset ||
        chunk.size() > MAX_HELD_BYTES - held_bytes_) {
      return false;
    }
    bytes.insert(bytes.end(), chunk.begin(), chunk.end());
    held_bytes_ += chunk.size();
    return true;
  }

  // Empty: no such blob.
  std::vector<std::byte> take(wire::Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = blobs_.extract(handle);
    if (found.empty()) return {};
    held_bytes_ -= found.mapped().size();
    found.mapped().push_back(std::byte{0});  // PTX ends with a zero whatever was sent
    return std::move(found.mapped());
  }

 private:
  static constexpr size_t MAX_BLOBS = 64;
  static constexpr size_t MAX_HELD_BYTES = 1 << 30;
  size_t held_bytes_ = 0;
  std::mutex mutex_;
  std::map<wire::Handle, std::vector<std::byte>> blobs_;
};

}  // namespace kvgpu::worker
