// SPDX-License-Identifier: Apache-2.0
// Bodies of records about virtual memory management. Append-only within a major version; every
// struct is free of padding. Physical memory is named by a number of the guest's choice, which is
// no handle. None of these calls needs a context.
#pragma once

#include <cstdint>

#include "kvgpu/records.h"

namespace kvgpu::wire {

struct AddressReserve {
  uint64_t bytes;
  uint64_t align_bytes;
  uint64_t wanted;
  uint64_t flags;
};
struct AddressReserved {
  uint64_t address;
};
struct AddressRange {  // cuMemAddressFree, cuMemUnmap
  uint64_t address;
  uint64_t bytes;
};
struct PhysicalProperties {  // CUDA 13.0 cuda.h: CUmemAllocationProp, of memory on a device
  uint32_t type;
  uint32_t handle_types;
  int32_t device;
  uint16_t usage;
  uint8_t compression;
  uint8_t reserved;
};
struct PhysicalCreate {
  uint64_t memory;
  uint64_t bytes;
  uint64_t flags;
  PhysicalProperties properties;
};
struct PhysicalRef {  // cuMemRelease
  uint64_t memory;
};
struct PhysicalRetain {  // what is mapped at the address gets its name back
  uint64_t memory;
  uint64_t address;
};
struct PhysicalMap {
  uint64_t memory;
  uint64_t address;
  uint64_t bytes;
  uint64_t offset;
  uint64_t flags;
};
struct SetAccess {  // followed by n x DeviceAccess
  uint64_t address;
  uint64_t bytes;
  uint64_t n;
};
struct DeviceAccess {
  int32_t device;
  uint32_t flags;
};
inline constexpr uint32_t MAX_DEVICE_ACCESSES = 256;
struct GetAccess {  // the reply: Value64
  uint64_t address;
  int32_t device;
  uint32_t reserved;
};
struct Granularity {  // the reply: Value64
  PhysicalProperties properties;
  uint64_t option;
};

}  // namespace kvgpu::wire
