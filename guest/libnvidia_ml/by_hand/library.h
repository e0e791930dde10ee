// SPDX-License-Identifier: Apache-2.0
// What lives from nvmlInit to nvmlShutdown: the devices, and what was last heard of them. Locks:
// one, held for no longer than a copy takes.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "report.h"

namespace kvgpu::nvml {

// How old an answer may be. Identity never changes; readings NVML itself averages over longer;
// memory and processes are asked for each time, so that they agree with CUDA's.
enum class Freshness { ANY, RECENT, NOW };

inline constexpr unsigned MAX_DEVICES = 16;  // no session has more

class Library {
 public:
  static Library& get();

  [[nodiscard]] nvmlReturn_t init();
  [[nodiscard]] nvmlReturn_t shutdown();
  bool is_initialised() const;
  unsigned n_devices() const { return n_devices_; }

  nvmlDevice_t handle(unsigned index) const;
  // The device's number; UNINITIALIZED, or INVALID_ARGUMENT where the handle is none of ours.
  [[nodiscard]] nvmlReturn_t find(nvmlDevice_t device, unsigned* index) const;
  [[nodiscard]] nvmlReturn_t report(nvmlDevice_t device, Freshness freshness,
                                    std::shared_ptr<const Report>* report);

 private:
  struct Known {
    std::shared_ptr<const Report> report;
    std::chrono::steady_clock::time_point asked_at;
  };

  [[nodiscard]] nvmlReturn_t list_devices();

  mutable std::mutex mutex_;
  unsigned n_inits_ = 0;
  std::atomic<unsigned> n_devices_ = 0;
  std::array<Known, MAX_DEVICES> known_;
};

// The asker's memory on a device: as CUDA shows it, its own limit (memory_mib) included.
struct MemoryView {
  uint64_t total_bytes, free_bytes;
};
MemoryView memory_of(const Report& report);

}  // namespace kvgpu::nvml
