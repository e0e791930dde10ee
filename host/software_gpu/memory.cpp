// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"
#include "context.h"

namespace software_gpu {
namespace {

constexpr uint64_t PAGE_BYTES = 4096;

// In check mode there is room between two allocations, so that what runs out of one is not in the
// next.
constexpr uint64_t GUARD_BYTES = 64 << 10;

uint64_t page_up(uint64_t bytes) { return (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1); }

bool counts_as_device(MemoryKind kind) {
  return kind == MemoryKind::DEVICE || kind == MemoryKind::MODULE || kind == MemoryKind::ARRAY;
}

}  // namespace

Allocation::~Allocation() {
  if (mapped_bytes != 0) munmap(reinterpret_cast<void*>(base), mapped_bytes);
}

const Allocation* Snapshot::find(uint64_t address) const {
  auto after = std::upper_bound(
      allocations.begin(), allocations.end(), address,
      [](uint64_t value, const auto& allocation) { return value < allocation->base; });
  if (after == allocations.begin()) return nullptr;
  const Allocation* candidate = std::prev(after)->get();
  return address - candidate->base < candidate->size_bytes ? candidate : nullptr;
}

CUresult Memory::add(std::shared_ptr<Allocation> allocation) {
  allocation->buffer_id = next_id_++;
  allocation->owner = current_context();
  by_base_.emplace(allocation->base, std::move(allocation));
  snapshot_.reset();
  return CUDA_SUCCESS;
}

CUresult Memory::allocate(uint64_t size_bytes, MemoryKind kind, unsigned flags, uint64_t* address,
                          std::shared_ptr<void> charge) {
  if (size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  if (size_bytes > (1ull << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t mapped_bytes = page_up(size_bytes) + (check_mode() ? GUARD_BYTES : 0);
  if (counts_as_device(kind) && page_up(size_bytes) > total_bytes_ - used_bytes_)
    return CUDA_ERROR_OUT_OF_MEMORY;
  void* base = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = std::make_shared<Allocation>();
  allocation->base = reinterpret_cast<uint64_t>(base);
  allocation->size_bytes = size_bytes;
  allocation->mapped_bytes = mapped_bytes;
  allocation->kind = kind;
  allocation->flags = flags;
  allocation->charge = std::move(charge);
  if (counts_as_device(kind)) used_bytes_ += page_up(size_bytes);
  *address = allocation->base;
  return add(std::move(allocation));
}

CUresult Memory::register_host(void* pointer, uint64_t size_bytes, unsigned flags) {
  const uint64_t base = reinterpret_cast<uint64_t>(pointer);
  if (!pointer || size_bytes == 0 || base + size_bytes < base) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  auto next = by_base_.lower_bound(base);
  if (next != by_base_.end() && next->first < base + size_bytes)
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (next != by_base_.begin()) {
    const Allocation& previous = *std::prev(next)->second;
    if (previous.base + previous.size_bytes > base)
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  auto allocation = std::make_shared<Allocation>();
  allocation->base = base;
  allocation->size_bytes = size_bytes;
  allocation->kind = MemoryKind::REGISTERED;
  allocation->flags = flags;
  return add(std::move(allocation));
}

CUresult Memory::release(uint64_t address, MemoryKind first, MemoryKind second) {
  std::shared_ptr<const Allocation> doomed;  // unmapped after the lock is given back
  std::lock_guard lock(mutex_);
  const auto found = by_base_.find(address);
  if (found == by_base_.end()) return CUDA_ERROR_INVALID_VALUE;
  const MemoryKind kind = found->second->kind;
  if (kind != first && kind != second) return CUDA_ERROR_INVALID_VALUE;
  doomed = found->second;
  if (counts_as_device(kind)) used_bytes_ -= page_up(doomed->size_bytes);
  by_base_.erase(found);
  snapshot_.reset();
  return CUDA_SUCCESS;
}

std::shared_ptr<const Allocation> Memory::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto after = by_base_.upper_bound(address);
  if (after == by_base_.begin()) return nullptr;
  const auto& candidate = std::prev(after)->second;
  return address - candidate->base < candidate->size_bytes ? candidate : nullptr;
}

bool Memory::contains(uint64_t address, uint64_t size_bytes) const {
  const auto allocation = find(address);
  return allocation && size_bytes <= allocation->size_bytes - (address - allocation->base);
}

std::shared_ptr<const Snapshot> Memory::snapshot() {
  std::lock_guard lock(mutex_);
  if (!snapshot_) {
    auto fresh = std::make_shared<Snapshot>();
    fresh->allocations.reserve(by_base_.size());
    for (const auto& [base, allocation] : by_base_) fresh->allocations.push_back(allocation);
    snapshot_ = std::move(fresh);
  }
  return snapshot_;
}

uint64_t Memory::free_bytes() const {
  std::lock_guard lock(mutex_);
  return total_bytes_ - used_bytes_;
}

void Memory::release_all(const void* owner) {
  std::lock_guard lock(mutex_);
  std::erase_if(by_base_, [&](const auto& item) {
    const Allocation& allocation = *item.second;
    // A module's memory goes with the module.
    if (allocation.owner != owner || allocation.kind == MemoryKind::MODULE) return false;
    if (counts_as_device(allocation.kind)) used_bytes_ -= page_up(allocation.size_bytes);
    return true;
  });
  snapshot_.reset();
}

}  // namespace software_gpu
