// SPDX-License-Identifier: Apache-2.0
// Addresses without memory, memory without addresses, and what maps one to the other.
// Who may access a mapping is not here: it stands in the table of each device (memory.h).
#pragma once

#include <cuda.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.h"

namespace software_gpu {

struct Mapping;

/// What cuMemCreate makes: memory of a device, or of the host. A handle is its address.
struct Physical {
  Physical(Memory& account_, const CUmemAllocationProp& properties_,
           std::shared_ptr<const Backing> backing_, bool is_charged_)
      : account(account_),
        properties(properties_),
        backing(std::move(backing_)),
        id(next_buffer_id()),
        is_charged(is_charged_) {}
  ~Physical() {
    if (is_charged) account.uncharge(backing->size_bytes());
  }
  Memory& account;
  const CUmemAllocationProp properties;
  const std::shared_ptr<const Backing> backing;
  const uint64_t id;
  const bool is_charged;  // what another process has made is in its account
};

/// A range of addresses. Where nothing is mapped the host's pages refuse every access.
class Reservation {
 public:
  /// Null: no such range is free.
  static std::shared_ptr<Reservation> create(uint64_t size_bytes, uint64_t align_bytes,
                                             uint64_t wanted_base);
  Reservation(uint64_t base_, uint64_t size_bytes_) : base(base_), size_bytes(size_bytes_) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();
  [[nodiscard]] bool show(const Mapping& mapping);
  /// What was shown before is shown again, as long as a snapshot holds it.
  void hide(const Mapping& mapping);
  const uint64_t base, size_bytes;

 private:
  std::mutex mutex_;
  // By the address of each granule; the last one is what is there.
  std::map<uint64_t, std::vector<const Mapping*>> shown_;
};

/// The pages are there until the last snapshot that names it is gone: see memory.h.
struct Mapping {
  Mapping(std::shared_ptr<Reservation> reservation_, std::shared_ptr<const Physical> physical_,
          uint64_t base_, uint64_t size_bytes_)
      : reservation(std::move(reservation_)),
        physical(std::move(physical_)),
        base(base_),
        size_bytes(size_bytes_) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reservation->hide(*this); }
  const std::shared_ptr<Reservation> reservation;
  const std::shared_ptr<const Physical> physical;
  const uint64_t base, size_bytes;
  const uint64_t id = next_buffer_id();
  // What the host may do with memory of its own; its pages are there all the same.
  mutable std::atomic<CUmemAccess_flags> host_access{CU_MEM_ACCESS_FLAGS_PROT_NONE};
};

/// All of the process. Thread-safe.
class VirtualMemory {
 public:
  static constexpr uint64_t GRANULE_BYTES = 2 << 20;  // as an H200's

  std::shared_ptr<Reservation> reservation_of(uint64_t address) const;
  std::shared_ptr<const Mapping> mapping_of(uint64_t address) const;
  CUresult reserve(uint64_t size_bytes, uint64_t align_bytes, uint64_t wanted_base, uint64_t* base);
  CUresult free(uint64_t base, uint64_t size_bytes);
  CUresult map(uint64_t base, uint64_t size_bytes, std::shared_ptr<const Physical> physical);
  /// `unmapped` are those that it was.
  CUresult unmap(uint64_t base, uint64_t size_bytes,
                 std::vector<std::shared_ptr<const Mapping>>* unmapped);
  /// The mappings that together are this range; empty where there is a gap or one is cut.
  std::vector<std::shared_ptr<const Mapping>> mappings_of(uint64_t base, uint64_t size_bytes) const;

  /// One more reference to the handle.
  CUmemGenericAllocationHandle retain(const std::shared_ptr<const Physical>& physical);
  CUresult release(CUmemGenericAllocationHandle handle);
  std::shared_ptr<const Physical> find(CUmemGenericAllocationHandle handle) const;
  /// What is made of this file, if anything in this process is.
  std::shared_ptr<const Physical> made_of(uint64_t file_id) const;

 private:
  struct Handle {
    std::shared_ptr<const Physical> physical;
    uint64_t n_references = 0;
  };
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Reservation>> reservations_;
  std::map<uint64_t, std::shared_ptr<const Mapping>> mappings_;
  std::map<CUmemGenericAllocationHandle, Handle> handles_;
};

}  // namespace software_gpu
