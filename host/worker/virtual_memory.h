// SPDX-License-Identifier: Apache-2.0
// What the guest has of the driver's virtual memory management: physical memory by the guest's
// numbers, and addresses that it has reserved. Mappings are device ranges of the session.
#pragma once

#include <cuda.h>

#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "kvgpu/memory_calls.h"

namespace kvgpu::worker {

struct Physical {
  CUmemGenericAllocationHandle raw = 0;
  wire::HostPhysical host{};  // 0 bytes: memory of the driver's
  bool is_host() const { return host.bytes != 0; }
};

class VirtualMemory {
 public:
  // False: the number is in use, or there are too many; a breach of the protocol.
  [[nodiscard]] bool add(uint64_t memory, const Physical& physical) {
    const std::lock_guard lock(mutex_);
    return physical_.size() < MAX_OBJECTS && physical_.emplace(memory, physical).second;
  }
  [[nodiscard]] std::optional<Physical> find(uint64_t memory) const {
    const std::lock_guard lock(mutex_);
    const auto found = physical_.find(memory);
    if (found == physical_.end()) return std::nullopt;
    return found->second;
  }
  [[nodiscard]] std::optional<Physical> take(uint64_t memory) {
    const std::lock_guard lock(mutex_);
    const auto taken = physical_.extract(memory);
    if (taken.empty()) return std::nullopt;
    return taken.mapped();
  }

  [[nodiscard]] bool add_reservation(uint64_t address, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    return reservations_.size() < MAX_OBJECTS && reservations_.emplace(address, bytes).second;
  }
  void remove_reservation(uint64_t address) {
    const std::lock_guard lock(mutex_);
    reservations_.erase(address);
  }
  [[nodiscard]] bool is_reserved(uint64_t address, uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    const auto after = reservations_.upper_bound(address);
    if (after == reservations_.begin()) return false;
    const auto& [begin, reserved_bytes] = *std::prev(after);
    const uint64_t offset = address - begin;
    return offset < reserved_bytes && bytes <= reserved_bytes - offset;
  }

 private:
  static constexpr size_t MAX_OBJECTS = 1 << 20;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Physical> physical_;
  std::map<uint64_t, uint64_t> reservations_;  // address -> bytes
};

}  // namespace kvgpu::worker
