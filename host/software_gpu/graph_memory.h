// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate. It is there from the node's making on, at one address; whether it is
// allocated follows the order in which launches and frees are given.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>

namespace software_gpu {

class Memory;

struct GraphMemory {
  GraphMemory(Memory& memory_, uint64_t address_, uint64_t n_bytes_)
      : memory(memory_), address(address_), n_bytes(n_bytes_) {}
  ~GraphMemory();
  Memory& memory;
  const uint64_t address, n_bytes;
};

/// Of one device.
class GraphMemories {
 public:
  explicit GraphMemories(Memory& memory) : memory_(memory) {}
  [[nodiscard]] CUresult create(uint64_t n_bytes, std::shared_ptr<GraphMemory>* created);
  std::shared_ptr<GraphMemory> find(uint64_t address) const;
  bool is_allocated(const GraphMemory& memory) const;
  void allocate(const std::shared_ptr<GraphMemory>& memory);
  /// False: it was not allocated.
  bool free(const GraphMemory& memory);
  [[nodiscard]] CUresult get(CUgraphMem_attribute attribute, uint64_t* value) const;
  [[nodiscard]] CUresult set(CUgraphMem_attribute attribute, uint64_t value);

 private:
  uint64_t reserved() const;  // these hold the lock
  uint64_t used() const;
  mutable std::mutex mutex_;
  Memory& memory_;
  std::map<uint64_t, std::weak_ptr<GraphMemory>> known_;
  std::map<uint64_t, std::shared_ptr<GraphMemory>> allocated_;
  uint64_t used_high_ = 0, reserved_high_ = 0;
};

}  // namespace software_gpu
