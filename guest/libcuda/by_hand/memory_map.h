// SPDX-License-Identifier: Apache-2.0
// Which addresses are CUDA memory: device allocations, globals of modules, pinned host memory.
// Answers pointer queries and range checks without asking the worker.
#pragma once

#include <map>
#include <optional>
#include <shared_mutex>

#include "objects.h"

namespace kvgpu::guest {

enum class MemoryKind { DEVICE, GLOBAL, PINNED };

struct MemoryRange {
  uint64_t begin;
  uint64_t bytes;
  MemoryKind kind;
  Context* context;
  unsigned flags;      // of cuMemHostAlloc
  uint64_t buffer_id;  // CU_POINTER_ATTRIBUTE_BUFFER_ID
  wire::Handle module = 0;
};

class MemoryMap {
 public:
  void add(MemoryRange range);
  std::optional<MemoryRange> find(uint64_t address) const;
  // The range that holds all of [address, address + bytes).
  std::optional<MemoryRange> find(uint64_t address, uint64_t bytes) const;
  // Only where `address` is the beginning of a range of this kind.
  std::optional<MemoryRange> remove(uint64_t address, MemoryKind kind);
  uint64_t device_bytes(int device) const;  // allocated and not freed
  void forget_context(const Context& context);
  void forget_module(wire::Handle module);

 private:
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, MemoryRange> ranges_;
  uint64_t next_buffer_id_ = 1;
};

MemoryMap& memory_map();

}  // namespace kvgpu::guest
