// SPDX-License-Identifier: Apache-2.0
// Which addresses are CUDA memory: device allocations, globals of modules, host memory.
// Answers pointer queries and range checks without asking the worker.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "objects.h"
#include "short_lock.h"

namespace kvgpu::guest {

enum class MemoryKind {
  DEVICE,
  POOL,     // of cuMemAllocAsync
  GLOBAL,   // of a module
  GRAPH,    // of a node: at its address for good, whether it is allocated just now or not
  VIRTUAL,  // of cuMemMap: what adjoins is one piece of memory
  OPENED,   // of cuIpcOpenMemHandle
  MANAGED,  // of cuMemAllocManaged, or a module's variable
  PINNED,   // of cuMemHostAlloc
  REGISTERED,
  VIRTUAL_HOST,  // of cuMemMap: host memory
  ALIAS,         // where the GPU, and this process a second time, sees what REGISTERED moved
};

struct MemoryRange {
  uint64_t begin;
  uint64_t bytes;
  MemoryKind kind;
  Context* context;
  unsigned flags = 0;      // of cuMemHostAlloc, cuMemHostRegister
  uint64_t buffer_id = 0;  // CU_POINTER_ATTRIBUTE_BUFFER_ID
  wire::Handle module = 0;
  wire::Handle pool = 0;      // 0: the device's default pool
  bool sync_memops = false;   // of managed memory from the start
  bool is_imported = false;   // another process's: it is in its account
  unsigned n_opened = 1;      // OPENED
  uint32_t handle_types = 0;  // CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
  // Of cuMemMap: what is mapped, and the devices (a bit each) that have been given access.
  uint64_t physical = 0;
  uint32_t readable = 0, writable = 0;
  CUmemAccess_flags host_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  // Host memory: the part that the GPU reaches, and where; the rest goes through the slab. Of an
  // ALIAS: the program's own addresses.
  uint64_t reached_begin = 0;
  uint64_t reached_bytes = 0;
  uint64_t gpu_begin = 0;

  bool is_host() const { return kind >= MemoryKind::PINNED; }
  bool is_mapping() const {
    return kind == MemoryKind::VIRTUAL || kind == MemoryKind::VIRTUAL_HOST;
  }
  // Where the GPU finds all of [address, address + bytes), which lies in here; 0: nowhere.
  uint64_t gpu_address(uint64_t address, uint64_t n_bytes) const {
    if (!is_host() || kind == MemoryKind::ALIAS) return address;
    const uint64_t offset = address - reached_begin;
    if (address < reached_begin || offset > reached_bytes || n_bytes > reached_bytes - offset) {
      return 0;
    }
    return gpu_begin + offset;
  }
};

struct Reservation {  // of cuMemAddressReserve
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

class MemoryMap {
 public:
  void add(const Reservation& reservation);
  void remove_reservation(uint64_t begin);
  std::optional<Reservation> find_reservation(uint64_t address) const;
  void add(MemoryRange range);
  std::optional<MemoryRange> find(uint64_t address) const;
  // The range that holds all of [address, address + bytes). Where several mappings that adjoin do:
  // the first one, with the access that there is to all.
  std::optional<MemoryRange> find(uint64_t address, uint64_t bytes) const;
  // The program's address of what the GPU finds at `gpu_address` in registered memory.
  std::optional<uint64_t> address_of(uint64_t gpu_address) const;
  // Only where `address` is the beginning of a range of this kind.
  std::optional<MemoryRange> remove(uint64_t address, MemoryKind kind);
  // Of mappings in [address, address + bytes).
  std::vector<MemoryRange> mappings_in(uint64_t address, uint64_t bytes) const;
  void set_access(uint64_t address, uint64_t bytes, const CUmemAccessDesc& access);
  std::vector<MemoryRange> take_mappings(uint64_t address, uint64_t bytes);
  // Of OPENED memory that begins there. False: there is none.
  bool open_again(uint64_t address);
  void close_once(uint64_t address);
  void set_sync_memops(uint64_t address, bool on);
  // Is any part of [address, address + bytes) in a range?
  bool overlaps(uint64_t address, uint64_t bytes) const;
  // What was made in the context; its host memory is the caller's to give back.
  std::vector<MemoryRange> take_context(const Context& context);
  uint64_t device_bytes(int device) const;  // allocated and not freed
  void forget_module(wire::Handle module);

 private:
  mutable ShortLock mutex_;
  std::map<uint64_t, MemoryRange> ranges_;
  std::map<uint64_t, uint64_t> reservations_;  // begin -> bytes
  uint64_t next_buffer_id_ = 1;
};

MemoryMap& memory_map();

}  // namespace kvgpu::guest
