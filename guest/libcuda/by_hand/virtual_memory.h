// SPDX-License-Identifier: Apache-2.0
// Physical memory that the program has made, and how long it lives: as long as the program holds
// it or something of it is mapped. What is mapped where: memory_map.h.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "cuda_api.h"
#include "kvgpu/memory_calls.h"

namespace kvgpu::guest {

struct Physical {
  CUmemAllocationProp properties;
  uint64_t bytes;  // 0: another process's
  unsigned n_references = 0;
  unsigned n_mappings = 0;
  wire::HostPhysical host{};  // 0 bytes: memory on a device
  bool is_host() const { return host.bytes != 0; }
};

class VirtualMemory {
 public:
  static VirtualMemory& get();

  // Calls of the worker about the same memory are made while this is held.
  std::mutex mutex;

  // The rest holding the mutex.
  CUmemGenericAllocationHandle new_name() { return ++last_; }
  void add(CUmemGenericAllocationHandle name, const Physical& physical) { all_[name] = physical; }
  // Null: there is no such memory, or the program holds it no more.
  Physical* find(CUmemGenericAllocationHandle name);
  Physical& mapped(CUmemGenericAllocationHandle name) { return all_.at(name); }
  void forget_if_unused(CUmemGenericAllocationHandle name);
  uint64_t bytes(int device) const;

 private:
  std::map<CUmemGenericAllocationHandle, Physical> all_;
  // No address, and no small number that a program may have by accident.
  CUmemGenericAllocationHandle last_ = 0x6bull << 56;
};

// What the program has made on the device and still exists.
uint64_t physical_bytes(int device);

}  // namespace kvgpu::guest
