// SPDX-License-Identifier: Apache-2.0
// How this process reaches the region: through the cache, or past it where the guest cannot have it
// write-back (docs/architecture.md, "Memory type").
#pragma once

#include <cstddef>

namespace kvgpu::guest {

class RegionMemory {
 public:
  static RegionMemory& get();

  // Measures the mapping by a page that nobody uses yet. KVGPU_MEMORY_TYPE=wb|wc|uc says it
  // instead.
  void find_out(std::byte* page);

  // Stores may arrive in any order: commit behind a fence.
  bool is_weakly_ordered() const { return streams_; }

  // Between the region and the program's memory.
  void copy_in(void* to, const void* from, size_t bytes) const;
  void copy_out(void* to, const void* from, size_t bytes) const;

 private:
  bool streams_ = false;
};

}  // namespace kvgpu::guest
