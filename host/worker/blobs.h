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

#include "kvgpu/calls.h"
#include "kvgpu/module_calls.h"

namespace kvgpu::worker {

// What was sent and never loaded stays until there is no room: the oldest go then.
class Blobs {
 public:
  enum class Written {
    YES,
    GONE,
    NEVER
  };  // GONE: had to make room; NEVER: a breach of the protocol

  // Chunks come in order, the first has offset 0.
  [[nodiscard]] Written write(wire::Handle handle, uint64_t total_bytes, uint64_t offset,
                              std::span<const std::byte> chunk) {
    if (total_bytes > wire::MAX_IMAGE_BYTES || chunk.size() > total_bytes - offset) {
      return Written::NEVER;
    }
    const std::lock_guard lock(mutex_);
    if (offset == 0) {
      drop(handle);
      while (blobs_.size() >= MAX_BLOBS) drop(oldest());
      blobs_[handle].number = ++last_number_;
    }
    const auto found = blobs_.find(handle);
    if (found == blobs_.end()) return Written::GONE;
    // In order, so that memory is taken for what has come and not for what was announced.
    auto& bytes = found->second.bytes;
    if (offset != bytes.size()) return Written::NEVER;
    while (held_bytes_ + chunk.size() > MAX_HELD_BYTES) {
      const wire::Handle going = oldest();
      drop(going);
      if (going == handle) return Written::GONE;
    }
    bytes.insert(bytes.end(), chunk.begin(), chunk.end());
    held_bytes_ += chunk.size();
    return Written::YES;
  }

  // Empty: no such blob, or one that had to make room.
  std::vector<std::byte> take(wire::Handle handle) {
    const std::lock_guard lock(mutex_);
    auto found = blobs_.extract(handle);
    if (found.empty()) return {};
    std::vector<std::byte> bytes = std::move(found.mapped().bytes);
    held_bytes_ -= bytes.size();
    bytes.push_back(std::byte{0});  // PTX ends with a zero whatever was sent
    return bytes;
  }

 private:
  // So many threads may load at a time, each image of them at most this long in all.
  static constexpr size_t MAX_BLOBS = 1024;
  static constexpr size_t MAX_HELD_BYTES = wire::MAX_IMAGE_BYTES;

  struct Blob {
    uint64_t number = 0;  // counts up as they begin
    std::vector<std::byte> bytes;
  };
  // These hold the lock.
  wire::Handle oldest() const {
    return std::ranges::min_element(blobs_, {}, [](const auto& item) { return item.second.number; })
        ->first;
  }
  void drop(wire::Handle handle) {
    const auto found = blobs_.extract(handle);
    if (!found.empty()) held_bytes_ -= found.mapped().bytes.size();
  }

  size_t held_bytes_ = 0;
  uint64_t last_number_ = 0;
  std::mutex mutex_;
  std::map<wire::Handle, Blob> blobs_;
};

}  // namespace kvgpu::worker
