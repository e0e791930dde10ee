// SPDX-License-Identifier: Apache-2.0
// Device memory and page-locked host memory of one device.
// An allocation lives until it was freed *and* no running kernel holds a snapshot that names it, so
// a kernel that uses freed memory reads stale bytes at worst and never brings the process down.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace software_gpu {

enum class MemoryKind : uint8_t { DEVICE, MODULE, ARRAY, HOST, REGISTERED };

struct Allocation {
  uint64_t base = 0;
  uint64_t size_bytes = 0;    // as asked for
  uint64_t mapped_bytes = 0;  // 0: not ours to unmap (REGISTERED)
  MemoryKind kind = MemoryKind::DEVICE;
  unsigned flags = 0;  // of cuMemHostAlloc or cuMemHostRegister
  uint64_t buffer_id = 0;
  const void* owner = nullptr;   // the context it was made in, and with which it goes
  std::shared_ptr<void> charge;  // what a pool accounts for it
  ~Allocation();
};

/// The memory that a kernel may touch, fixed when the kernel starts. Sorted by base.
struct Snapshot {
  std::vector<std::shared_ptr<const Allocation>> allocations;
  const Allocation* find(uint64_t address) const;
};

class Memory {
 public:
  explicit Memory(uint64_t total_bytes) : total_bytes_(total_bytes) {}
  [[nodiscard]] CUresult allocate(uint64_t size_bytes, MemoryKind kind, unsigned flags,
                                  uint64_t* address, std::shared_ptr<void> charge = nullptr);
  [[nodiscard]] CUresult register_host(void* pointer, uint64_t size_bytes, unsigned flags);
  /// Forget the allocation that starts at `address`, if its kind is one of `first` and `second`.
  [[nodiscard]] CUresult release(uint64_t address, MemoryKind first, MemoryKind second);
  std::shared_ptr<const Allocation> find(uint64_t address) const;
  /// True when all of [address, address + size) is one device-visible allocation.
  bool contains(uint64_t address, uint64_t size_bytes) const;
  std::shared_ptr<const Snapshot> snapshot();
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t free_bytes() const;
  /// All that was made while `owner` was current.
  void release_all(const void* owner);

 private:
  [[nodiscard]] CUresult add(std::shared_ptr<Allocation> allocation);
  mutable std::mutex mutex_;
  const uint64_t total_bytes_;
  uint64_t used_bytes_ = 0;  // DEVICE, MODULE and ARRAY
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::shared_ptr<const Allocation>> by_base_;
  std::shared_ptr<const Snapshot> snapshot_;  // null: out of date
};

}  // namespace software_gpu
