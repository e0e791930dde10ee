// SPDX-License-Identifier: Apache-2.0
#include "advice.h"

#include "backing.h"

namespace software_gpu {
namespace {

uint64_t page_of(uint64_t address) { return address & ~(PAGE_BYTES - 1); }
uint64_t page_after(uint64_t address) { return page_of(address + PAGE_BYTES - 1); }

bool are_same(const CUmemLocation& a, const CUmemLocation& b) {
  return a.type == b.type && (a.type == CU_MEM_LOCATION_TYPE_HOST || a.id == b.id);
}

}  // namespace

void AdviceMap::change(uint64_t address, uint64_t n_bytes,
                       const std::function<void(Advice&)>& how) {
  std::lock_guard lock(mutex_);
  const auto cut = [&](uint64_t at) {
    return from_.emplace(at, std::prev(from_.upper_bound(at))->second).first;
  };
  const auto end = cut(page_after(address + n_bytes));
  for (auto part = cut(page_of(address)); part != end; ++part) how(part->second);
}

Advice AdviceMap::common(uint64_t address, uint64_t n_bytes) const {
  std::lock_guard lock(mutex_);
  auto part = from_.upper_bound(page_of(address));
  Advice result = std::prev(part)->second;
  for (; part != from_.end() && part->first < address + n_bytes; ++part) {
    const Advice& other = part->second;
    result.read_mostly &= other.read_mostly;
    result.accessed_by &= other.accessed_by;
    result.accessed_by_host &= other.accessed_by_host;
    if (!are_same(result.preferred, other.preferred)) result.preferred = Advice().preferred;
    if (!are_same(result.prefetched, other.prefetched)) result.prefetched = Advice().prefetched;
  }
  return result;
}

}  // namespace software_gpu
