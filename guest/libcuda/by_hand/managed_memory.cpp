// SPDX-License-Identifier: Apache-2.0
#include "managed_memory.h"

#include <algorithm>

#include "copies.h"
#include "fault_handlers.h"
#include "host_memory.h"
#include "log.h"
#include "managed_pager.h"

namespace kvgpu::guest {

namespace {

uint64_t page_floor(uint64_t address) { return address / PAGE_BYTES * PAGE_BYTES; }
uint64_t page_ceiling(uint64_t address) { return page_floor(address + PAGE_BYTES - 1); }

}  // namespace

ManagedMemory& ManagedMemory::get() {
  static auto& memory = *new ManagedMemory;
  return memory;
}

template <typename Visit>
CUresult ManagedMemory::each_part(const Area& area, uint64_t from, uint64_t to, Visit visit) {
  for (const auto& [begin, part] : area.parts) {
    const uint64_t first = std::max(begin, from), end = std::min(begin + part.bytes, to);
    if (first >= end) continue;
    if (const CUresult bad = visit(first, end - first)) return bad;
  }
  return CUDA_SUCCESS;
}

Stream* ManagedMemory::mover_of(const Context& context) {
  return tables().streams.find(context.mover.load(std::memory_order_acquire));
}

// ---- what there is

ManagedMemory::Area* ManagedMemory::find(uint64_t address) {
  const auto after = areas_.upper_bound(address);
  if (after == areas_.begin()) return nullptr;
  Area& area = std::prev(after)->second;
  return address < area.pages.end() ? &area : nullptr;
}

ManagedMemory::Area* ManagedMemory::insert(uint64_t begin, uint64_t bytes, PageState state,
                                           Context& context) {
  auto pages = ShadowPages::map(begin, bytes, state);
  if (!pages) return nullptr;
  Area& area = areas_.emplace(begin, Area{std::move(*pages), &context}).first->second;
  if (state != PageState::ON_GPU) here_.insert(begin);
  lowest_ = std::min(lowest_.load(), begin);
  highest_ = std::max(highest_.load(), begin + bytes);
  is_used_ = true;
  Pager::start();
  return &area;
}

bool ManagedMemory::add(Context& context, uint64_t begin, uint64_t bytes, uint64_t allocated,
                        unsigned attach) {
  const std::lock_guard lock(mutex_);
  // Both sides are zeroes: whatever the program writes first is written here.
  Area* const area = insert(begin, page_ceiling(bytes), PageState::WRITTEN, context);
  if (area == nullptr) return false;
  area->allocated = allocated;
  area->attach = attach;
  area->parts.emplace(begin, Part{bytes});
  return true;
}

bool ManagedMemory::add_variable(Context& context, wire::Handle module, uint64_t address,
                                 uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t end = page_ceiling(address + bytes);
  for (uint64_t at = page_floor(address); at < end;) {
    Area* area = find(at);
    if (area == nullptr) {
      const auto next = areas_.lower_bound(at);
      const uint64_t to = next == areas_.end() ? end : std::min(end, next->first);
      area = insert(at, to - at, PageState::ON_GPU, context);
      if (area == nullptr) return false;
    }
    const uint64_t first = std::max(address, at);
    const uint64_t to = std::min(address + bytes, area->pages.end());
    at = area->pages.end();
    if (!area->parts.emplace(first, Part{to - first, module}).second) continue;
    // The program may have these pages already, for the sake of another variable.
    area->pages.each_run_here([&](const BlockRun& run) {
      (void)download(*area, std::max(first, area->pages.address_of(run.first)),
                     std::min(to, area->pages.address_of(run.first + run.n)));
    });
  }
  return true;
}

void ManagedMemory::erase(Areas::iterator at) {
  here_.erase(at->first);
  areas_.erase(at);
}

uint64_t ManagedMemory::remove(uint64_t begin) {
  const std::lock_guard lock(mutex_);
  const auto found = areas_.find(begin);
  if (found == areas_.end() || found->second.allocated == 0) return 0;
  const uint64_t allocated = found->second.allocated;
  erase(found);
  return allocated;
}

void ManagedMemory::forget_context(const Context& context) {
  if (!is_used_) return;
  const std::lock_guard lock(mutex_);
  for (auto at = areas_.begin(); at != areas_.end();) {
    const auto next = std::next(at);
    if (at->second.context == &context) erase(at);
    at = next;
  }
}

void ManagedMemory::forget_module(wire::Handle module) {
  if (!is_used_) return;
  const std::lock_guard lock(mutex_);
  for (auto at = areas_.begin(); at != areas_.end();) {
    const auto next = std::next(at);
    auto& parts = at->second.parts;
    std::erase_if(parts, [&](const auto& part) { return part.second.module == module; });
    if (parts.empty()) erase(at);
    at = next;
  }
}

void ManagedMemory::want_here(uint64_t address, bool wanted) {
  const std::lock_guard lock(mutex_);
  if (Area* const area = find(address)) area->is_wanted_here = wanted;
}

void ManagedMemory::attach(uint64_t begin, unsigned flags, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  Area* const area = find(begin);
  if (area == nullptr) return;
  area->attach = flags;
  area->stream = stream.handle;
}

// ---- to the GPU

// CUDA 13.0 cuda.h, cuStreamAttachMemAsync: memory of a stream that is destroyed is everybody's.
// What is attached to the host may be used by kernels all the same where access is concurrent.
bool ManagedMemory::is_for(const Area& area, const Stream& stream) {
  return area.attach != CU_MEM_ATTACH_SINGLE || area.stream == stream.handle ||
         tables().streams.find(area.stream) == nullptr;
}

CUresult ManagedMemory::upload(Area& area, const BlockRun& run, Stream& mover) {
  const Enqueue enqueue(mover);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  const ShadowPages& pages = area.pages;
  const uint64_t from = pages.address_of(run.first), to = pages.address_of(run.first + run.n);
  return each_part(area, from, to, [&](uint64_t begin, uint64_t bytes) {
    const uint64_t end = begin + bytes;
    for (uint64_t at = begin; at < end;) {
      const auto [first, n_bytes] = pages.touched(at, end);
      if (n_bytes == 0) break;
      if (const CUresult bad = stage_to_device(enqueue, first, pages.data(first), n_bytes)) {
        return bad;
      }
      at = first + n_bytes;
    }
    return CUDA_SUCCESS;
  });
}

// Another stream's work may come next: the pages are there before this returns.
CUresult ManagedMemory::move_to_gpu(const std::function<bool(const Area&)>& is_wanted) {
  std::vector<Area*> moved;
  std::set<Stream*> movers;
  for (const uint64_t begin : here_) {
    Area& area = areas_.at(begin);
    if (!is_wanted(area)) continue;
    moved.push_back(&area);
    CUresult bad = CUDA_SUCCESS;
    area.pages.each_run_here([&](const BlockRun& run) {
      area.pages.protect(run);
      if (bad != CUDA_SUCCESS || area.pages.state(run.first) != PageState::WRITTEN) return;
      if (area.is_as_fetched()) return;
      Stream* const mover = mover_of(*area.context);
      bad = mover == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : upload(area, run, *mover);
      movers.insert(mover);
    });
    if (bad != CUDA_SUCCESS) return bad;
  }
  for (Stream* const mover : movers) {
    if (const CUresult bad = synchronize_stream(*mover)) return bad;
  }
  for (Area* const area : moved) {
    area->pages.each_run_here([&](const BlockRun& run) { area->pages.drop(run); });
    area->pages.set({0, area->pages.n_blocks()}, PageState::ON_GPU);
    area->fetched.clear();
    here_.erase(area->pages.begin());
  }
  if (!moved.empty()) Pager::watch();
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::give(const Stream& stream, bool* is_counted) {
  if (stream.is_mover || stream.capture.load(std::memory_order_acquire) != nullptr) {
    return CUDA_SUCCESS;  // what a graph holds runs later
  }
  std::unique_lock lock(mutex_);
  may_give_.wait(lock, [this] { return !is_held_; });
  ++n_given_;
  n_giving_.fetch_add(1, std::memory_order_relaxed);
  *is_counted = true;
  if (here_.empty()) return CUDA_SUCCESS;
  return move_to_gpu([&](const Area& area) { return is_for(area, stream); });
}

CUresult ManagedMemory::give_range(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return move_to_gpu([&](const Area& area) {
    return area.pages.begin() < address + bytes && address < area.pages.end();
  });
}

void ManagedMemory::after_host_function() {
  const std::lock_guard lock(mutex_);
  ++n_given_;
  if (move_to_gpu([](const Area&) { return true; }) != CUDA_SUCCESS) {
    log(Level::WARNING, "what a host function wrote into managed memory is not on the GPU");
  }
}

// ---- back

void ManagedMemory::add_copies(const Area& area, uint64_t from, uint64_t to,
                               std::vector<FromDevice>* copies) {
  (void)each_part(area, from, to, [&](uint64_t begin, uint64_t bytes) {
    copies->push_back({area.pages.data(begin), begin, bytes});
    return CUDA_SUCCESS;
  });
}

CUresult ManagedMemory::download(Area& area, uint64_t from, uint64_t to) {
  Stream* const mover = mover_of(*area.context);
  if (mover == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const Enqueue enqueue(*mover);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  std::vector<FromDevice> copies;
  add_copies(area, from, to, &copies);
  return stage_from_device(enqueue, copies);
}

// The program cannot be told of an error, and its thread must go on: the next call returns it.
void ManagedMemory::fetch(Area& area, const BlockRun& run) {
  const uint64_t from = area.pages.address_of(run.first);
  const uint64_t to = area.pages.address_of(run.first + run.n);
  CUresult result = download(area, from, to);
  // A deferred error has been told by that: the memory is there all the same.
  if (result != CUDA_SUCCESS) result = download(area, from, to);
  if (result != CUDA_SUCCESS) {
    log(Level::WARNING, "managed memory at 0x%llx could not be read from the GPU (error %d)",
        static_cast<unsigned long long>(area.pages.begin()), result);
  }
  area.pages.set(run, PageState::READ);
  here_.insert(area.pages.begin());
}

void ManagedMemory::wait_for_stream(wire::Handle handle) {
  Stream* const stream = tables().streams.find(handle);
  if (stream != nullptr) (void)synchronize_stream(*stream);
}

bool ManagedMemory::bring_back(uint64_t address, bool in_host_function) {
  constexpr int PATIENCE = 3;
  std::unique_lock lock(mutex_);
  Area* area = find(address);
  for (int attempt = 0; area != nullptr; ++attempt) {
    const size_t block = area->pages.block_at(address);
    const PageState state = area->pages.state(block);
    if (state == PageState::READ) {
      area->pages.set(area->pages.ahead(block, state, PageState::WRITTEN), PageState::WRITTEN);
    } else if (state == PageState::WRITTEN) {
      area->pages.set({block, 1}, state);
    }
    if (state != PageState::ON_GPU) break;
    // What a host function touches is done: its stream waits for it.
    const bool is_attached = area->attach == CU_MEM_ATTACH_SINGLE;
    const wire::Handle stream = area->stream;
    const uint64_t n_given = n_given_;
    // In the end it may be this very page that is to be in a record.
    const bool was_giving = is_giving() && attempt < PATIENCE;
    is_held_ = attempt >= PATIENCE;
    lock.unlock();
    bool is_done = true;
    if (is_attached && !in_host_function) wait_for_stream(stream);
    if (!is_attached && !in_host_function) (void)finish_all_work(&is_done);
    lock.lock();
    area = find(address);
    // Work that was given meanwhile may write there.
    const bool has_more = was_giving || n_given_ != n_given;
    if (area == nullptr || (has_more && !is_attached && !in_host_function)) continue;
    const size_t now = area->pages.block_at(address);
    if (area->pages.state(now) != PageState::ON_GPU) break;
    fetch(*area, area->pages.ahead(now, PageState::ON_GPU, PageState::READ));
    break;
  }
  is_held_ = false;
  may_give_.notify_all();
  return area != nullptr;
}

CUresult ManagedMemory::prepare(Context& context) {
  CUresult error = CUDA_SUCCESS;
  if (mover_of(context) != nullptr) return error;
  Stream* const mover = make_stream(context, CU_STREAM_NON_BLOCKING, 0, &error);
  if (mover == nullptr) return error;
  mover->is_mover = true;
  context.mover.store(mover->handle, std::memory_order_release);
  return error;
}

}  // namespace kvgpu::guest
