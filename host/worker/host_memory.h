// SPDX-License-Identifier: Apache-2.0
// Host memory of cuMemCreate. The driver's own would be out of the guest's reach, so it is an
// extent of the region. Where the guest maps it, it is mapped over the pages by which the driver
// keeps reserved addresses free, and registered while a device has access. Any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "kvgpu/memory_calls.h"

namespace kvgpu::worker {

class Session;

class HostMemory {
 public:
  explicit HostMemory(Session* session) : session_(*session) {}

  // An extent is kvgpud's again when nothing refers to it any more: no physical memory, no mapping,
  // no token.
  CUresult create(const wire::HostPhysicalCreate& wanted, wire::HostPhysical* made);
  CUresult hold(const wire::HostPhysical& extent);
  void drop(const wire::HostPhysical& extent);
  // Held while another session's extent is asked for: this one's last reference to the same extent
  // must not go before it is told.
  std::mutex importing;

  CUresult map(uint64_t address, uint64_t bytes, const wire::HostPhysical& extent);
  void unmap(uint64_t address);
  std::optional<wire::HostPhysical> mapped_at(uint64_t address) const;
  // `accessible`: to the device; all devices have what one has. Of a whole mapping.
  CUresult set_access(uint64_t address, int device, bool accessible);

  // [address, address + bytes), cut where such memory begins and ends. Empty: one would be cut.
  struct Part {
    uint64_t address;
    uint64_t bytes;
    bool is_host;
  };
  std::vector<Part> parts(uint64_t address, uint64_t bytes) const;

 private:
  struct Mapping {
    uint64_t bytes;
    wire::HostPhysical extent;
    uint32_t devices = 0;  // that have access, a bit each
  };

  bool place(uint64_t address, uint64_t bytes, int protection, int flags,
             uint64_t region_off) const;

  Session& session_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Mapping> mappings_;     // by address
  std::map<uint64_t, unsigned> references_;  // by offset
};

}  // namespace kvgpu::worker
