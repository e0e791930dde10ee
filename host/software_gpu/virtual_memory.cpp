// SPDX-License-Identifier: Apache-2.0
#include "virtual_memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace software_gpu {
namespace {

constexpr uint64_t GRANULE_BYTES = VirtualMemory::GRANULE_BYTES;

bool is_granular(uint64_t value) { return value % GRANULE_BYTES == 0; }

/// The entry of a map by base that an address lies in, or null.
template <class T>
std::shared_ptr<T> entry_of(const std::map<uint64_t, std::shared_ptr<T>>& by_base,
                            uint64_t address) {
  auto after = by_base.upper_bound(address);
  if (after == by_base.begin()) return nullptr;
  const auto& candidate = std::prev(after)->second;
  return address - candidate->base < candidate->size_bytes ? candidate : nullptr;
}

/// Addresses that refuse every access. Null: there are none.
void* guard(void* at, uint64_t n_bytes, int flags) {
  void* mapped =
      mmap(at, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

}  // namespace

std::shared_ptr<Reservation> Reservation::create(uint64_t size_bytes, uint64_t align_bytes,
                                                 uint64_t wanted_base) {
  void* const wanted = reinterpret_cast<void*>(wanted_base);
  if (wanted && wanted_base % align_bytes == 0) {
    if (void* got = guard(wanted, size_bytes, MAP_FIXED_NOREPLACE)) {
      if (got == wanted) return std::make_shared<Reservation>(wanted_base, size_bytes);
      munmap(got, size_bytes);  // a kernel that takes the flag for a hint
    }
  }
  if (align_bytes > UINT64_MAX - size_bytes) return nullptr;
  const uint64_t n_bytes = size_bytes + align_bytes;
  void* const mapped = guard(nullptr, n_bytes, 0);
  if (!mapped) return nullptr;
  const uint64_t start = reinterpret_cast<uint64_t>(mapped);
  const uint64_t base = (start + align_bytes - 1) & ~(align_bytes - 1);
  if (base != start) munmap(mapped, base - start);
  munmap(reinterpret_cast<void*>(base + size_bytes), start + n_bytes - base - size_bytes);
  return std::make_shared<Reservation>(base, size_bytes);
}

Reservation::~Reservation() { munmap(reinterpret_cast<void*>(base), size_bytes); }

bool Reservation::show(const Mapping& mapping) {
  std::lock_guard lock(mutex_);
  void* const at = reinterpret_cast<void*>(mapping.base);
  if (!mapping.physical->backing->map(at, 0, mapping.size_bytes)) return false;
  for (uint64_t granule = mapping.base; granule < mapping.base + mapping.size_bytes;
       granule += GRANULE_BYTES)
    shown_[granule].push_back(&mapping);
  return true;
}

void Reservation::hide(const Mapping& mapping) {
  std::lock_guard lock(mutex_);
  auto granule = shown_.lower_bound(mapping.base);
  while (granule != shown_.end() && granule->first < mapping.base + mapping.size_bytes) {
    auto& [address, here] = *granule;
    void* const at = reinterpret_cast<void*>(address);
    const bool was_shown = here.back() == &mapping;
    std::erase(here, &mapping);
    if (here.empty())
      guard(at, GRANULE_BYTES, MAP_FIXED);
    else if (const Mapping& before = *here.back(); was_shown)
      before.physical->backing->map(at, address - before.base, GRANULE_BYTES);
    granule = here.empty() ? shown_.erase(granule) : std::next(granule);
  }
}

std::shared_ptr<Reservation> VirtualMemory::reservation_of(uint64_t address) const {
  std::lock_guard lock(mutex_);
  return entry_of(reservations_, address);
}

std::shared_ptr<const Mapping> VirtualMemory::mapping_of(uint64_t address) const {
  std::lock_guard lock(mutex_);
  return entry_of(mappings_, address);
}

CUresult VirtualMemory::reserve(uint64_t size_bytes, uint64_t align_bytes, uint64_t wanted_base,
                                uint64_t* base) {
  if (size_bytes == 0 || !is_granular(size_bytes) || (align_bytes & (align_bytes - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  auto reservation =
      Reservation::create(size_bytes, std::max(align_bytes, GRANULE_BYTES), wanted_base);
  if (!reservation) return CUDA_ERROR_OUT_OF_MEMORY;
  *base = reservation->base;
  std::lock_guard lock(mutex_);
  reservations_.emplace(*base, std::move(reservation));
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::free(uint64_t base, uint64_t size_bytes) {
  std::shared_ptr<Reservation> freed;  // after the lock, and after the snapshots of its mappings
  std::lock_guard lock(mutex_);
  const auto found = reservations_.find(base);
  if (found == reservations_.end() || found->second->size_bytes != size_bytes)
    return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = mappings_.lower_bound(base);
  if (mapped != mappings_.end() && mapped->first < base + size_bytes)
    return CUDA_ERROR_INVALID_VALUE;
  freed = std::move(found->second);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::map(uint64_t base, uint64_t size_bytes,
                            std::shared_ptr<const Physical> physical) {
  std::shared_ptr<const Mapping> mapping;
  std::lock_guard lock(mutex_);
  auto reservation = entry_of(reservations_, base);
  // As driver 580 says it.
  if (reservation && size_bytes != 0 && !is_granular(size_bytes)) return CUDA_ERROR_NOT_SUPPORTED;
  if (!reservation || size_bytes == 0 || !is_granular(base) ||
      size_bytes > reservation->size_bytes - (base - reservation->base) ||
      size_bytes > physical->backing->size_bytes())
    return CUDA_ERROR_INVALID_VALUE;
  const auto next = mappings_.lower_bound(base);
  if (entry_of(mappings_, base) || (next != mappings_.end() && next->first < base + size_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  mapping = std::make_shared<Mapping>(reservation, std::move(physical), base, size_bytes);
  if (!reservation->show(*mapping)) return CUDA_ERROR_OUT_OF_MEMORY;
  mappings_.emplace(base, std::move(mapping));
  return CUDA_SUCCESS;
}

// As on driver 580 nothing need be mapped where addresses are reserved, but what is goes as a
// whole.
CUresult VirtualMemory::unmap(uint64_t base, uint64_t size_bytes,
                              std::vector<std::shared_ptr<const Mapping>>* unmapped) {
  std::lock_guard lock(mutex_);
  const auto reservation = entry_of(reservations_, base);
  if (!reservation || size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t end =
      base + std::min(size_bytes, reservation->base + reservation->size_bytes - base);
  const auto first = mappings_.lower_bound(base), last = mappings_.lower_bound(end);
  const auto before = entry_of(mappings_, base);
  if (before && before->base < base) return CUDA_ERROR_INVALID_VALUE;
  if (first != last && std::prev(last)->first + std::prev(last)->second->size_bytes > end)
    return CUDA_ERROR_INVALID_VALUE;
  for (auto each = first; each != last; ++each) unmapped->push_back(each->second);
  mappings_.erase(first, last);
  return CUDA_SUCCESS;
}

std::vector<std::shared_ptr<const Mapping>> VirtualMemory::mappings_of(uint64_t base,
                                                                       uint64_t size_bytes) const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Mapping>> result;
  uint64_t at = base;
  for (auto next = mappings_.find(base); size_bytes != 0; ++next) {
    if (next == mappings_.end() || next->first != at || next->second->size_bytes > size_bytes)
      return {};
    result.push_back(next->second);
    at += next->second->size_bytes;
    size_bytes -= next->second->size_bytes;
  }
  return result;
}

CUmemGenericAllocationHandle VirtualMemory::retain(
    const std::shared_ptr<const Physical>& physical) {
  const auto handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical.get());
  std::lock_guard lock(mutex_);
  Handle& entry = handles_[handle];
  entry.physical = physical;
  ++entry.n_references;
  return handle;
}

CUresult VirtualMemory::release(CUmemGenericAllocationHandle handle) {
  std::shared_ptr<const Physical> released;  // after the lock
  std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.n_references != 0) return CUDA_SUCCESS;
  released = std::move(found->second.physical);
  handles_.erase(found);
  return CUDA_SUCCESS;
}

std::shared_ptr<const Physical> VirtualMemory::find(CUmemGenericAllocationHandle handle) const {
  std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second.physical;
}

std::shared_ptr<const Physical> VirtualMemory::made_of(uint64_t file_id) const {
  std::lock_guard lock(mutex_);
  const auto is_it = [&](const std::shared_ptr<const Physical>& physical) {
    const SharedFile* file = physical->backing->file();
    return file && file->id() == file_id;
  };
  for (const auto& [handle, entry] : handles_)
    if (is_it(entry.physical)) return entry.physical;
  for (const auto& [base, mapping] : mappings_)
    if (is_it(mapping->physical)) return mapping->physical;
  return nullptr;
}

}  // namespace software_gpu
