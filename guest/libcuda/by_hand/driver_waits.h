// SPDX-License-Identifier: Apache-2.0
// What the driver does when a program waits: it prints what kernels have printed, and pools give
// back what they keep beyond their release thresholds. Our waits end by a number in shared memory,
// of which the driver never hears; so the worker is told after one, as long as a stream has given
// the driver such a thing to do.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "objects.h"

namespace kvgpu::guest {

class DriverWaits {
 public:
  // Kernels that may print, or memory that was freed: after its record is in the ring and the
  // stream is dirty.
  void add(Stream& stream);
  // The program has waited.
  CUresult settle() { return is_any_.load(std::memory_order_relaxed) ? tell() : CUDA_SUCCESS; }

  static DriverWaits& output() { return of(Due::OUTPUT); }
  static DriverWaits& memory() { return of(Due::MEMORY); }

 private:
  struct Entry {
    wire::Handle stream;
    Context* context;
  };

  explicit DriverWaits(Due due) : due_(due) {}
  static DriverWaits& of(Due due);
  bool is_still_due(const Entry& entry) const;
  CUresult tell();

  const Due due_;
  std::atomic<bool> is_any_{false};
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

// The worker's driver waits for nothing in this context, and does what it does then.
CUresult tell_of_wait(const Context& context);

}  // namespace kvgpu::guest
