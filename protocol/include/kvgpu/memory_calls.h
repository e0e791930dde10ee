// SPDX-License-Identifier: Apache-2.0
// Bodies of records about virtual memory management and about what processes share. Append-only
// within a major version; every struct is free of padding. Physical memory is named by a number of
// the guest's choice, which is no handle. Virtual memory needs no context.
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
struct HostPhysicalCreate {  // HOST_PHYSICAL: host memory of cuMemCreate; the reply: HostPhysical
  uint64_t memory;
  uint64_t bytes;
  uint32_t location_type;
  int32_t node;
};
struct HostPhysical {  // where it lies in the region; both sides map it where it is mapped
  uint64_t region_off;
  uint64_t bytes;
  uint32_t location_type;
  int32_t node;
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

// ---- sharing (PROTOCOL.md §4.1)
// Stands for what a session has shared. Who knows it, and is of the same VM, gets it.
struct Token {
  uint32_t session;
  uint8_t random[12];
};
static_assert(sizeof(Token) == 16);

struct PhysicalExport {  // the reply, as of all that follows and gives something away: Token
  uint64_t memory;
  uint64_t flags;
};
struct PhysicalImport {  // the reply: PhysicalImported
  uint64_t memory;
  Token token;
};
struct PhysicalImported {
  PhysicalProperties properties;
  HostPhysical host;  // 0 bytes: memory on a device
};
struct PoolExport {
  Handle pool;
  uint64_t flags;
  int32_t device;  // the pool's
  uint32_t reserved;
};
struct PoolImport {
  Handle pool;
  Token token;
  uint64_t flags;
};
struct PoolImported {
  int32_t device;
  uint32_t reserved;
};
struct PointerExport {  // cuMemPoolExportPointer, cuIpcGetMemHandle
  Handle context;
  uint64_t address;
};
struct PointerImport {  // cuMemPoolImportPointer
  Handle pool;
  Token token;
};
struct OpenMemory {  // cuIpcOpenMemHandle_v2
  Handle context;
  Token token;
  uint64_t flags;
};
struct OpenedMemory {  // and of cuMemPoolImportPointer
  uint64_t address;
  uint64_t bytes;
};
struct CloseMemory {
  Handle context;
  uint64_t address;
};
struct OpenEvent {
  Handle context;
  Handle event;
  Token token;
};
struct Revoke {  // nobody has the token any more
  Token token;
};

// ---- peers
struct P2PAtomicCapabilities {  // followed by n x u32: CUatomicOperation; so is the reply
  int32_t source;
  int32_t destination;
  uint32_t n;
  uint32_t reserved;
};
struct PeerAccess {
  Handle context;
  Handle peer;
  uint64_t flags;
};
struct PeerSide {
  Handle context;    // that the memory is of
  uint64_t address;  // of the first byte
  uint64_t pitch_bytes;
  uint64_t height;  // rows of a slice
};
struct PeerCopy {
  Handle stream;
  uint64_t mark;
  PeerSide dst;
  PeerSide src;
  uint64_t width_bytes;
  uint64_t height;
  uint64_t depth;
};
// Bytes from the first to the last one of a side; false: more than there are addresses.
constexpr bool peer_bytes(const PeerSide& side, const PeerCopy& copy, uint64_t* bytes) {
  if (copy.width_bytes == 0 || copy.height == 0 || copy.depth == 0) return false;
  uint64_t slices, rows;
  return !__builtin_mul_overflow(side.height, copy.depth - 1, &slices) &&
         !__builtin_add_overflow(slices, copy.height - 1, &rows) &&
         !__builtin_mul_overflow(rows, side.pitch_bytes, &rows) &&
         !__builtin_add_overflow(rows, copy.width_bytes, bytes);
}

}  // namespace kvgpu::wire
