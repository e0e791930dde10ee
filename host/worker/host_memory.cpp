// SPDX-License-Identifier: Apache-2.0
#include "host_memory.h"

#include <sys/mman.h>

#include <iterator>
#include <vector>

#include "control.h"
#include "kvgpu/layout.h"
#include "session.h"

namespace kvgpu::worker {

CUresult HostMemory::create(const wire::HostPhysicalCreate& wanted, wire::HostPhysical* made) {
  const uint64_t bytes = wanted.bytes;
  if (bytes == 0 || bytes % EXTENT_ALIGN_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
  // In the byte-stream form guest and host have no memory in common, and who uses this watches it
  // without calls.
  if (session_.config.wake_fd >= 0) return CUDA_ERROR_NOT_SUPPORTED;
  control::Extent extent;
  if (!session_.control->allocate_extent(bytes, &extent)) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = {extent.offset, extent.bytes, wanted.location_type, wanted.node};
  return hold(*made);
}

CUresult HostMemory::hold(const wire::HostPhysical& extent) {
  const uint64_t region_bytes = session_.config.region_bytes;
  const uint64_t offset = extent.region_off;
  if (extent.bytes == 0 || offset > region_bytes || extent.bytes > region_bytes - offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  ++references_[offset];
  return CUDA_SUCCESS;
}

void HostMemory::drop(const wire::HostPhysical& extent) {
  const std::lock_guard first(importing);
  const std::lock_guard lock(mutex_);
  const auto found = references_.find(extent.region_off);
  if (found == references_.end() || --found->second != 0) return;
  references_.erase(found);
  session_.control->free_extent(extent.region_off);
}

CUresult HostMemory::map(uint64_t address, uint64_t bytes, const wire::HostPhysical& extent) {
  if (bytes == 0 || address % EXTENT_ALIGN_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes != extent.bytes) return CUDA_ERROR_NOT_SUPPORTED;  // in part: as driver 580 says it
  const std::vector<Part> there = parts(address, bytes);
  if (there.size() != 1 || there[0].is_host || session_.overlaps_mapping(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!place(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, extent.region_off)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const std::lock_guard lock(mutex_);
  mappings_[address] = {bytes, extent};
  ++references_[extent.region_off];
  return CUDA_SUCCESS;
}

void HostMemory::unmap(uint64_t address) {
  Mapping mapping;
  {
    const std::lock_guard lock(mutex_);
    const auto taken = mappings_.extract(address);
    if (taken.empty()) return;
    mapping = taken.mapped();
  }
  if (mapping.devices != 0) session_.remove_registered(address);
  constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  (void)place(address, mapping.bytes, PROT_NONE, FLAGS, 0);  // the driver's addresses still
  drop(mapping.extent);
}

bool HostMemory::place(uint64_t address, uint64_t bytes, int protection, int flags,
                       uint64_t region_off) const {
  const int fd = (flags & MAP_ANONYMOUS) != 0 ? -1 : session_.config.region_fd;
  return mmap(reinterpret_cast<void*>(address), bytes, protection, flags | MAP_FIXED, fd,
              static_cast<off_t>(region_off)) != MAP_FAILED;
}

std::optional<wire::HostPhysical> HostMemory::mapped_at(uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return std::nullopt;
  const auto& [begin, mapping] = *std::prev(after);
  if (address - begin >= mapping.bytes) return std::nullopt;
  return mapping.extent;
}

CUresult HostMemory::set_access(uint64_t address, int device, bool accessible) {
  if (device < 0 || device >= session_.n_devices) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(address);
  if (found == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  Mapping& mapping = found->second;
  const uint32_t bit = 1u << device, before = mapping.devices;
  const uint32_t after = accessible ? before | bit : before & ~bit;
  if (before == 0 && after != 0) {
    if (const CUresult bad = session_.add_registered(address, mapping.bytes)) return bad;
  } else if (before != 0 && after == 0) {
    session_.remove_registered(address);
  }
  mapping.devices = after;
  return CUDA_SUCCESS;
}

std::vector<HostMemory::Part> HostMemory::parts(uint64_t address, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  if (address + bytes < address) return {};
  const uint64_t end = address + bytes;
  std::vector<Part> found;
  uint64_t done = address;
  auto at = mappings_.upper_bound(address);
  if (at != mappings_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > address) --at;
  for (; at != mappings_.end() && at->first < end; ++at) {
    const auto& [begin, mapping] = *at;
    if (begin < done || mapping.bytes > end - begin) return {};
    if (begin > done) found.push_back({done, begin - done, false});
    found.push_back({begin, mapping.bytes, true});
    done = begin + mapping.bytes;
  }
  if (done < end || bytes == 0) found.push_back({done, end - done, false});
  return found;
}

}  // namespace kvgpu::worker
