// SPDX-License-Identifier: Apache-2.0
#include "memory_map.h"

#include <mutex>

namespace kvgpu::guest {

MemoryMap& memory_map() {
  static auto& map = *new MemoryMap;
  return map;
}

void MemoryMap::add(MemoryRange range) {
  const std::lock_guard lock(mutex_);
  range.buffer_id = next_buffer_id_++;
  range.sync_memops |= range.kind == MemoryKind::MANAGED;
  // When the driver gives an address out anew, what had it is gone: a graph, or a module that
  // another thread is about to forget.
  auto at = ranges_.upper_bound(range.begin);
  if (at != ranges_.begin()) {
    const auto before = std::prev(at);
    if (range.begin - before->first < before->second.bytes) at = before;
  }
  while (at != ranges_.end() && at->first < range.begin + range.bytes) at = ranges_.erase(at);
  ranges_[range.begin] = range;
}

void MemoryMap::add(const Reservation& reservation) {
  const std::lock_guard lock(mutex_);
  reservations_[reservation.begin] = reservation.bytes;
}

void MemoryMap::remove_reservation(uint64_t begin) {
  const std::lock_guard lock(mutex_);
  reservations_.erase(begin);
}

std::optional<Reservation> MemoryMap::find_reservation(uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto after = reservations_.upper_bound(address);
  if (after == reservations_.begin()) return std::nullopt;
  const auto& [begin, bytes] = *std::prev(after);
  if (address - begin >= bytes) return std::nullopt;
  return Reservation{begin, bytes};
}

std::optional<MemoryRange> MemoryMap::find(uint64_t address) const { return find(address, 1); }

std::optional<MemoryRange> MemoryMap::find(uint64_t address, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin()) return std::nullopt;
  --at;
  MemoryRange found = at->second;
  if (address - found.begin >= found.bytes) return std::nullopt;
  uint64_t covered_bytes = found.begin + found.bytes - address;
  while (bytes > covered_bytes) {
    const uint64_t end = at->first + at->second.bytes;
    ++at;
    if (at == ranges_.end() || at->first != end || found.kind != MemoryKind::VIRTUAL ||
        at->second.kind != MemoryKind::VIRTUAL) {
      return std::nullopt;
    }
    found.readable &= at->second.readable;
    found.writable &= at->second.writable;
    covered_bytes += at->second.bytes;
  }
  return found;
}

std::optional<uint64_t> MemoryMap::address_of(uint64_t gpu_address) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, range] : ranges_) {
    if (range.kind != MemoryKind::REGISTERED || range.gpu_begin == 0) continue;
    const uint64_t offset = gpu_address - range.gpu_begin;
    if (offset < range.reached_bytes) return range.reached_begin + offset;
  }
  return std::nullopt;
}

std::optional<MemoryRange> MemoryMap::remove(uint64_t address, MemoryKind kind) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.kind != kind) return std::nullopt;
  const MemoryRange range = found->second;
  ranges_.erase(found);
  return range;
}

uint64_t MemoryMap::device_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [begin, range] : ranges_) {
    const bool allocated = range.kind == MemoryKind::DEVICE || range.kind == MemoryKind::POOL ||
                           (range.kind == MemoryKind::MANAGED && range.module == 0);
    if (allocated && !range.is_imported && range.context->device == device) sum += range.bytes;
  }
  return sum;
}

std::vector<MemoryRange> MemoryMap::mappings_in(uint64_t address, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryRange> found;
  for (auto at = ranges_.lower_bound(address); at != ranges_.end() && at->first - address < bytes;
       ++at) {
    if (at->second.is_mapping()) found.push_back(at->second);
  }
  return found;
}

void MemoryMap::set_access(uint64_t address, uint64_t bytes, const CUmemAccessDesc& access) {
  const std::lock_guard lock(mutex_);
  const CUmemAccess_flags flags = access.flags;
  const bool is_of_device = access.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const uint32_t bit = is_of_device ? 1u << access.location.id : 0;
  for (auto at = ranges_.lower_bound(address); at != ranges_.end() && at->first - address < bytes;
       ++at) {
    if (!at->second.is_mapping()) continue;
    MemoryRange& range = at->second;
    if (!is_of_device) {
      range.host_access = flags;
      continue;
    }
    const bool reads = flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    const bool writes = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    range.readable = (range.readable & ~bit) | (reads ? bit : 0);
    range.writable = (range.writable & ~bit) | (writes ? bit : 0);
    if (range.kind != MemoryKind::VIRTUAL_HOST) continue;
    range.reached_begin = range.gpu_begin = range.begin;
    range.reached_bytes = range.readable == 0 ? 0 : range.bytes;
  }
}

std::vector<MemoryRange> MemoryMap::take_mappings(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryRange> taken;
  auto at = ranges_.lower_bound(address);
  while (at != ranges_.end() && at->first - address < bytes) {
    if (!at->second.is_mapping()) {
      ++at;
      continue;
    }
    taken.push_back(at->second);
    at = ranges_.erase(at);
  }
  return taken;
}

bool MemoryMap::open_again(uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.kind != MemoryKind::OPENED) return false;
  ++found->second.n_opened;
  return true;
}

void MemoryMap::close_once(uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.kind != MemoryKind::OPENED) return;
  if (--found->second.n_opened == 0) ranges_.erase(found);
}

void MemoryMap::set_sync_memops(uint64_t address, bool on) {
  const std::lock_guard lock(mutex_);
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return;
  MemoryRange& range = std::prev(after)->second;
  if (address - range.begin < range.bytes) range.sync_memops = on;
}

bool MemoryMap::overlaps(uint64_t address, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto after = ranges_.lower_bound(address);
  if (after != ranges_.end() && after->first - address < bytes) return true;
  if (after == ranges_.begin()) return false;
  const MemoryRange& before = std::prev(after)->second;
  return address - before.begin < before.bytes;
}

std::vector<MemoryRange> MemoryMap::take_context(const Context& context) {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryRange> taken;
  std::erase_if(ranges_, [&](const auto& item) {
    // Mappings belong to no context.
    if (item.second.context != &context || item.second.is_mapping()) return false;
    taken.push_back(item.second);
    return true;
  });
  return taken;
}

void MemoryMap::forget_module(wire::Handle module) {
  const std::lock_guard lock(mutex_);
  std::erase_if(ranges_, [&](const auto& item) { return item.second.module == module; });
}

}  // namespace kvgpu::guest
