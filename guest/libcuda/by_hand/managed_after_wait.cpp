// SPDX-License-Identifier: Apache-2.0
// What the program is given back as soon as it has waited, since system calls cannot fault: small
// allocations, and what it wants on its side.
#include <algorithm>
#include <cstring>

#include "copies.h"
#include "managed_memory.h"

namespace kvgpu::guest {

namespace {

bool is_quiet(Stream& stream) {
  // What a stream captures is no work yet.
  if (stream.is_mover || stream.capture.load(std::memory_order_acquire) != nullptr) return true;
  uint64_t last;
  return is_over(stream, &last);
}

bool is_quiet() {
  return std::ranges::all_of(tables().contexts.handles(), [](wire::Handle handle) {
    Context* const context = tables().contexts.find(handle);
    if (context == nullptr || !context->active) return true;
    const std::lock_guard lock(context->mutex);
    return std::ranges::all_of(context->streams, [](Stream* stream) { return is_quiet(*stream); });
  });
}

}  // namespace

void ManagedMemory::bring_back() {
  constexpr uint64_t ALL_SMALL_BYTES = MIB;
  std::unique_lock lock(mutex_);
  const uint64_t n_given = n_given_;
  if (is_giving()) return;
  std::vector<uint64_t> back;
  uint64_t n_small_bytes = 0;
  for (const auto& [begin, area] : areas_) {
    if (here_.contains(begin)) continue;
    const bool fits = is_small(area) && n_small_bytes + area.pages.bytes() <= ALL_SMALL_BYTES;
    if (fits) n_small_bytes += area.pages.bytes();
    if (fits || area.is_wanted_here) back.push_back(begin);
  }
  if (back.empty()) return;
  lock.unlock();
  if (!is_quiet()) return;
  lock.lock();
  if (n_given_ != n_given) return;
  std::map<Context*, std::vector<Area*>> wanted;
  for (const uint64_t begin : back) {
    const auto found = areas_.find(begin);
    if (found == areas_.end() || here_.contains(begin)) continue;
    wanted[found->second.context].push_back(&found->second);
  }
  for (const auto& [context, areas] : wanted) {
    if (!bring_back(*context, areas)) return;
  }
}

bool ManagedMemory::bring_back(const Context& context, const std::vector<Area*>& areas) {
  Stream* const mover = mover_of(context);
  if (mover == nullptr) return false;
  std::vector<FromDevice> copies;
  for (const Area* area : areas) {
    add_copies(*area, area->pages.begin(), area->pages.end(), &copies);
  }
  const Enqueue enqueue(*mover);
  if (enqueue.status() != CUDA_SUCCESS) return false;
  if (stage_from_device(enqueue, copies) != CUDA_SUCCESS) return false;
  for (Area* const area : areas) {
    if (is_small(*area)) area->keep_fetched();  // before the program can write
    area->pages.set({0, area->pages.n_blocks()}, PageState::WRITTEN);
    area->is_wanted_here = false;
    here_.insert(area->pages.begin());
  }
  return true;
}

// A small one comes back with each synchronisation, and is seldom written: that is told by what it
// was, since system calls must find it writable.
bool ManagedMemory::is_small(const Area& area) { return area.pages.bytes() <= 64 * KIB; }

void ManagedMemory::Area::keep_fetched() {
  const std::byte* const data = pages.data(pages.begin());
  fetched.assign(data, data + pages.bytes());
}

bool ManagedMemory::Area::is_as_fetched() const {
  return !fetched.empty() &&
         std::memcmp(fetched.data(), pages.data(pages.begin()), fetched.size()) == 0;
}

}  // namespace kvgpu::guest
