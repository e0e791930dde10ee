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

#include "backing.h"

namespace software_gpu {

/// VIRTUAL: a mapping of cuMemMap's, as far as the device may access it. IMPORTED: of another
/// process. TILES: of an array whose memory is mapped later.
enum class MemoryKind : uint8_t {
  DEVICE,
  MODULE,
  ARRAY,
  TILES,
  HOST,
  REGISTERED,
  VIRTUAL,
  IMPORTED,
  MANAGED
};

struct Mapping;
struct MemPool;

struct Allocation {
  uint64_t base = 0;
  uint64_t size_bytes = 0;    // as asked for
  uint64_t mapped_bytes = 0;  // 0: not ours to unmap (REGISTERED, VIRTUAL)
  MemoryKind kind = MemoryKind::DEVICE;
  unsigned flags = 0;  // of cuMemHostAlloc, cuMemHostRegister or cuMemAllocManaged
  bool read_only = false;
  uint64_t buffer_id = 0;
  const void* owner = nullptr;             // the context it was made in, and with which it goes
  std::shared_ptr<MemPool> pool;           // which accounts for it as long as this is held
  std::shared_ptr<const Backing> backing;  // null: anonymous memory, or not ours
  std::shared_ptr<const Mapping> mapping;  // of VIRTUAL
  ~Allocation();
};

/// The memory that a kernel may touch, fixed when the kernel starts. Sorted by base.
struct Snapshot {
  std::vector<std::shared_ptr<const Allocation>> allocations;
  const Allocation* find(uint64_t address) const;
  /// True when all of [address, address + size) is one allocation, or adjacent mappings.
  bool covers(uint64_t address, uint64_t size_bytes, bool to_write) const;
};

class Memory {
 public:
  Memory(int ordinal, uint64_t total_bytes)
      : total_bytes_(total_bytes), files_(SharedFile::Use::DEVICE, ordinal) {}
  [[nodiscard]] CUresult allocate(uint64_t size_bytes, MemoryKind kind, unsigned flags,
                                  uint64_t* address, std::shared_ptr<MemPool> pool = nullptr);
  [[nodiscard]] CUresult register_host(void* pointer, uint64_t size_bytes, unsigned flags);
  /// Memory that was made elsewhere, from now on visible to this device, too; in place of what was
  /// visible at its base.
  void share(const std::shared_ptr<const Allocation>& allocation);
  /// What another process has made.
  [[nodiscard]] CUresult import_from(std::shared_ptr<const SharedFile> file, uint64_t offset_bytes,
                                     uint64_t size_bytes, uint64_t* address,
                                     std::shared_ptr<MemPool> pool = nullptr);
  /// Forget the allocation that starts at `address`, if its kind is one of `first` and `second`.
  [[nodiscard]] CUresult release(uint64_t address, MemoryKind first, MemoryKind second);
  std::shared_ptr<const Allocation> find(uint64_t address) const;
  /// True when all of [address, address + size) may be written.
  bool contains(uint64_t address, uint64_t size_bytes) {
    return snapshot()->covers(address, size_bytes, true);
  }
  std::shared_ptr<const Snapshot> snapshot();
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t free_bytes() const { return total_bytes_ - used_bytes_; }
  /// Physical memory without an address: false where so much is not there.
  [[nodiscard]] bool charge(uint64_t size_bytes);
  void uncharge(uint64_t size_bytes) { used_bytes_ -= size_bytes; }
  FileMemory& files() { return files_; }
  /// All that was made while `owner` was current.
  void release_all(const void* owner);

 private:
  [[nodiscard]] CUresult add(std::shared_ptr<Allocation> allocation);
  mutable std::mutex mutex_;
  const uint64_t total_bytes_;
  // DEVICE, MODULE, ARRAY and physical memory. Not under the mutex: what a snapshot holds may go
  // with it.
  std::atomic<uint64_t> used_bytes_{0};
  FileMemory files_;
  std::map<uint64_t, std::shared_ptr<const Allocation>> by_base_;
  std::shared_ptr<const Snapshot> snapshot_;  // null: out of date
};

/// Names each allocation of the process for ever.
uint64_t next_buffer_id();

}  // namespace software_gpu
