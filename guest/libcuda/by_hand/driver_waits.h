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
  // The stream object goes; its work has come to its end when it has reached `last`.
  static void leave(Stream& stream, uint64_t last);

 private:
  struct Entry {
    wire::Handle stream;  // 0: it has gone
    Context* context;
    uint32_t word;
    uint64_t last;  // of a stream that has gone
  };

  explicit DriverWaits(Due due) : due_(due) {}
  static DriverWaits& of(Due due);
  bool is_still_due(const Entry& entry);  // holding the mutex
  CUresult tell();
  CUresult tell_host(const std::vector<Entry>& over, const std::vector<Entry>& due);
  CUresult tell_older_host(const std::vector<Entry>& over);

  const Due due_;
  std::atomic<bool> is_any_{false};
  std::mutex telling_;  // who comes second returns after the worker has answered, too
  std::mutex mutex_;    // of what follows, and of is_due of all streams; a stream's is taken below
  std::vector<Entry> entries_;
};

// The worker's driver waits, for nothing, in this context, and does what it does then. Nothing
// where the host is older.
CUresult tell_of_wait(const Context& context);

}  // namespace kvgpu::guest
