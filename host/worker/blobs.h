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
  // The first chunk (offset 0) fixes the size. False: the guest broke the protocol.
  [[nodiscard]] bool write(wire::Handle handle, uint64_t total_bytes, uint64_t offset,
                           std::span<const std::byte> chunk) {
    const std::lock_guard lock(mutex_);
    if (offset == 0) {
      if (blobs_.size() >= MAX_BLOBS && !blobs_.contains(handle)) return false;
      // One byte more: PTX ends with a zero whatever was sent.
      blobs_[handle].assign(total_bytes + 1, std::byte{0});
    }
    const auto found = blobs_.find(handle);
    if (found == blobs_.end()) return false;
    auto& bytes = found->second;
    if (offset >= bytes.size() || chunk.size() > bytes.size() - 1 - offset) return false;
    std::copy(chunk.begin(), chunk.end(), bytes.begin() + static_cast<ptrdiff_t>(offset));
    return true;
  }

  // Empty: no such blob.
  std::vector<std::byte> take(wire::Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = blobs_.extract(handle);
    return found.empty() ? std::vector<std::byte>{} : std::move(found.mapped());
  }

 private:
  static constexpr size_t MAX_BLOBS = 64;
  std::mutex mutex_;
  std::map<wire::Handle, std::vector<std::byte>> blobs_;
};

}  // namespace kvgpu::worker
