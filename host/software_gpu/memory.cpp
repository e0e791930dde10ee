// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"
#include "context.h"
#include "virtual_memory.h"

namespace software_gpu {
namespace {

// In check mode there is room between two allocations, so that what runs out of one is not in the
// next.
constexpr uint64_t GUARD_BYTES = 64 << 10;

uint64_t page_up(uint64_t bytes) { return (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1); }

bool counts_as_device(MemoryKind kind) {
  return kind == MemoryKind::DEVICE || kind == MemoryKind::MODULE || kind == MemoryKind::ARRAY;
}

void* map_anonymous(uint64_t n_bytes) {
  void* base = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

bool are_one_range(const Allocation& a, const Allocation& b) {
  return a.mapping && b.mapping && a.mapping->reservation == b.mapping->reservation;
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

bool Snapshot::covers(uint64_t address, uint64_t size_bytes, bool to_write) const {
  while (true) {
    const Allocation* part = find(address);
    if (!part || (to_write && part->read_only)) return false;
    const uint64_t rest_bytes = part->size_bytes - (address - part->base);
    if (size_bytes <= rest_bytes) return true;
    // Beyond the end another allocation may lie by chance; adjacent mappings are one range.
    const Allocation* next = find(address + rest_bytes);
    if (!next || !are_one_range(*part, *next)) return false;
    address += rest_bytes;
    size_bytes -= rest_bytes;
  }
}

uint64_t next_buffer_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

CUresult Memory::add(std::shared_ptr<Allocation> allocation) {
  allocation->buffer_id = next_buffer_id();
  allocation->owner = current_context();
  by_base_.emplace(allocation->base, std::move(allocation));
  snapshot_.reset();
  return CUDA_SUCCESS;
}

void Memory::share(const std::shared_ptr<const Allocation>& allocation) {
  std::shared_ptr<const Allocation> replaced = allocation;  // goes after the lock
  std::shared_ptr<const Snapshot> out_of_date;
  std::lock_guard lock(mutex_);
  by_base_[allocation->base].swap(replaced);
  snapshot_.swap(out_of_date);
}

bool Memory::charge(uint64_t size_bytes) {
  uint64_t used_bytes = used_bytes_;
  do {
    if (size_bytes > total_bytes_ - used_bytes) return false;
  } while (!used_bytes_.compare_exchange_weak(used_bytes, used_bytes + size_bytes));
  return true;
}

CUresult Memory::allocate(uint64_t size_bytes, MemoryKind kind, unsigned flags, uint64_t* address,
                          std::shared_ptr<MemPool> pool) {
  if (size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size_bytes > (1ull << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t charged_bytes = counts_as_device(kind) ? page_up(size_bytes) : 0;
  if (!charge(charged_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = std::make_shared<Allocation>();
  allocation->size_bytes = size_bytes;
  allocation->kind = kind;
  allocation->flags = flags;
  const uint64_t mapped_bytes = page_up(size_bytes) + (check_mode() ? GUARD_BYTES : 0);
  if (kind == MemoryKind::DEVICE)
    allocation->backing = (pool && pool->files ? *pool->files : files_).take(mapped_bytes);
  void* const base = allocation->backing ? allocation->backing->map(nullptr, 0, mapped_bytes)
                     : kind != MemoryKind::DEVICE ? map_anonymous(mapped_bytes)
                                                  : nullptr;
  if (!base) {
    uncharge(charged_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // As with driver 580 a forked child has nothing there.
  if (kind == MemoryKind::MANAGED) (void)madvise(base, mapped_bytes, MADV_DONTFORK);
  allocation->base = *address = reinterpret_cast<uint64_t>(base);
  allocation->mapped_bytes = mapped_bytes;
  allocation->pool = std::move(pool);
  std::lock_guard lock(mutex_);
  return add(std::move(allocation));
}

CUresult Memory::import_from(std::shared_ptr<const SharedFile> file, uint64_t offset_bytes,
                             uint64_t size_bytes, uint64_t* address,
                             std::shared_ptr<MemPool> pool) {
  if (size_bytes == 0 || offset_bytes > file->size_bytes() || offset_bytes % PAGE_BYTES != 0 ||
      size_bytes > file->size_bytes() - offset_bytes)
    return CUDA_ERROR_INVALID_VALUE;
  auto allocation = std::make_shared<Allocation>();
  allocation->backing =
      std::make_shared<Backing>(std::move(file), offset_bytes, size_bytes, Backing::Origin::SHARED);
  void* const base = allocation->backing->map(nullptr, 0, page_up(size_bytes));
  if (!base) return CUDA_ERROR_MAP_FAILED;
  allocation->base = *address = reinterpret_cast<uint64_t>(base);
  allocation->size_bytes = size_bytes;
  allocation->mapped_bytes = page_up(size_bytes);
  allocation->kind = MemoryKind::IMPORTED;
  allocation->pool = std::move(pool);
  std::lock_guard lock(mutex_);
  return add(std::move(allocation));
}

CUresult Memory::register_host(void* pointer, uint64_t size_bytes, unsigned flags) {
  const uint64_t base = reinterpret_cast<uint64_t>(pointer);
  if (!pointer || size_bytes == 0 || base + size_bytes < base) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  auto next = by_base_.upper_bound(base);
  if (next != by_base_.end() && next->first < base + size_bytes)
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (next != by_base_.begin()) {
    const Allocation& previous = *std::prev(next)->second;
    const bool is_managed = previous.kind == MemoryKind::MANAGED;
    if (previous.base + previous.size_bytes > base)
      return is_managed ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
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
  if (counts_as_device(kind)) uncharge(page_up(doomed->size_bytes));
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

void Memory::release_all(const void* owner) {
  std::lock_guard lock(mutex_);
  std::erase_if(by_base_, [&](const auto& item) {
    const Allocation& allocation = *item.second;
    // A module's memory goes with the module; what cuMemAllocManaged makes has flags.
    if (allocation.owner != owner || allocation.kind == MemoryKind::MODULE ||
        (allocation.kind == MemoryKind::MANAGED && allocation.flags == 0))
      return false;
    if (counts_as_device(allocation.kind)) uncharge(page_up(allocation.size_bytes));
    return true;
  });
  snapshot_.reset();
}

}  // namespace software_gpu
