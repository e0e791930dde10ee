// SPDX-License-Identifier: Apache-2.0
// What memory a session has: the guest's own that is registered, and of devices.
#include <sys/mman.h>

#include <algorithm>

#include "session.h"

namespace kvgpu::worker {

namespace {

uint64_t bytes_of(uint64_t bytes) { return bytes; }
uint64_t bytes_of(const Session::DeviceRange& range) { return range.bytes; }
bool is_mapping(uint64_t) { return false; }
bool is_mapping(const Session::DeviceRange& range) { return range.is_mapping; }

// Is all of [address, address + len_bytes) inside one of the ranges (beginning -> bytes), or in
// mappings that adjoin?
template <typename Ranges>
bool covers(const Ranges& ranges, uint64_t address, uint64_t len_bytes) {
  const auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return false;
  for (auto at = std::prev(after);;) {
    const uint64_t offset = address - at->first, bytes = bytes_of(at->second);
    if (offset > bytes) return false;
    if (len_bytes <= bytes - offset) return true;
    address = at->first + bytes;
    len_bytes -= bytes - offset;
    const auto next = std::next(at);
    if (next == ranges.end() || next->first != address) return false;
    if (!is_mapping(at->second) || !is_mapping(next->second)) return false;
    at = next;
  }
}

}  // namespace

CUresult Session::register_range(uint64_t address, uint64_t len_bytes) {
  auto* const pointer = reinterpret_cast<void*>(address);
  constexpr unsigned FLAGS = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (const CUresult bad = driver->cuMemHostRegister_v2(pointer, len_bytes, FLAGS)) return bad;
  CUdeviceptr device_address = 0;
  CUresult result = driver->cuMemHostGetDevicePointer_v2(&device_address, pointer, 0);
  // "One address" is what everything else builds on.
  if (result == CUDA_SUCCESS && device_address != address) result = CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS) (void)driver->cuMemHostUnregister(pointer);
  return result;
}

CUresult Session::register_session_memory(const Context& context) {
  const std::lock_guard lock(extents_mutex_);
  if (registered_) return CUDA_SUCCESS;
  extents_[reinterpret_cast<uint64_t>(slab())] = SLAB_BYTES;
  const auto progress = reinterpret_cast<uint64_t>(block + PROGRESS_OFF);
  if (const CUresult bad = register_range(progress, PROGRESS_BYTES)) return bad;
  for (const auto& [address, len_bytes] : extents_) {
    if (const CUresult bad = register_range(address, len_bytes)) return bad;
  }
  registered_ = true;
  registered_in_ = context.serial;
  return CUDA_SUCCESS;
}

void Session::end_registrations(const Context& going) {
  const std::lock_guard lock(extents_mutex_);
  if (!registered_ || registered_in_ != going.serial) return;
  registered_ = false;
  (void)driver->cuMemHostUnregister(block + PROGRESS_OFF);
  for (const auto& [address, len_bytes] : extents_) {
    (void)driver->cuMemHostUnregister(reinterpret_cast<void*>(address));
  }
}

CUresult Session::enter_registered() {
  std::vector<Context> candidates;
  handles.each_context([&](Context& context) { candidates.push_back(context); });
  uint64_t wanted;
  {
    const std::lock_guard lock(extents_mutex_);
    if (!registered_) return CUDA_ERROR_INVALID_CONTEXT;
    wanted = registered_in_;
    candidates.insert(candidates.end(), kept_.begin(), kept_.end());
  }
  for (const Context& context : candidates) {
    if (context.serial == wanted) return enter(context);
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult Session::add_extent(uint64_t region_off, uint64_t len_bytes) {
  if (region_off > config.region_bytes || len_bytes > config.region_bytes - region_off) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto* const address = reinterpret_cast<void*>(address_of(region_off));
  if (mmap(address, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, config.region_fd,
           static_cast<off_t>(region_off)) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const std::lock_guard lock(extents_mutex_);
  const CUresult result = register_range(reinterpret_cast<uint64_t>(address), len_bytes);
  if (result != CUDA_SUCCESS) return result;
  extents_[reinterpret_cast<uint64_t>(address)] = len_bytes;
  return CUDA_SUCCESS;
}

CUresult Session::add_registered(uint64_t address, uint64_t len_bytes) {
  const CUresult entered = enter_registered();
  const std::lock_guard lock(extents_mutex_);
  if (registered_) {  // else with the first context
    if (entered != CUDA_SUCCESS) return entered;
    if (const CUresult bad = register_range(address, len_bytes)) return bad;
  }
  extents_[address] = len_bytes;
  return CUDA_SUCCESS;
}

void Session::remove_registered(uint64_t address) {
  const bool entered = enter_registered() == CUDA_SUCCESS;
  const std::lock_guard lock(extents_mutex_);
  extents_.erase(address);
  if (entered) (void)driver->cuMemHostUnregister(reinterpret_cast<void*>(address));
}

bool Session::is_session_memory(uint64_t address, uint64_t len_bytes) const {
  const std::lock_guard lock(extents_mutex_);
  return covers(extents_, address, len_bytes);
}

void Session::add_device_range(uint64_t address, const DeviceRange& range) {
  if (range.bytes == 0) return;
  const std::lock_guard lock(device_ranges_mutex_);
  // When the driver gives an address out anew, what had it is gone: a graph, a module's variable.
  auto at = device_ranges_.upper_bound(address);
  if (at != device_ranges_.begin()) {
    const auto before = std::prev(at);
    if (address - before->first < before->second.bytes) at = before;
  }
  while (at != device_ranges_.end() && at->first < address + range.bytes) {
    uncount(at->second);
    at = device_ranges_.erase(at);
  }
  device_ranges_[address] = range;
  if (!range.of_graph) memory_bytes_ += range.bytes;
  peak_memory_bytes_ = std::max(peak_memory_bytes_, memory_bytes_);
}

void Session::uncount(const DeviceRange& range) {
  if (!range.of_graph) memory_bytes_ -= range.bytes;
}

Session::DeviceRange Session::remove_device_range(uint64_t address) {
  const std::lock_guard lock(device_ranges_mutex_);
  const auto found = device_ranges_.find(address);
  if (found == device_ranges_.end()) return {};
  const DeviceRange range = found->second;
  if (range.of_graph) return range;
  uncount(range);
  device_ranges_.erase(found);
  return range;
}

std::vector<uint64_t> Session::forget_device_ranges(wire::Handle context) {
  const std::lock_guard lock(device_ranges_mutex_);
  std::vector<uint64_t> addresses;
  std::erase_if(device_ranges_, [&](const auto& item) {
    if (item.second.context != context) return false;
    uncount(item.second);
    if (!item.second.of_graph) addresses.push_back(item.first);
    return true;
  });
  return addresses;
}

void Session::forget(wire::Handle handle) {
  handles.remove(handle);
  if (wire::handle_kind(handle) != wire::Kind::MODULE) return;
  const std::lock_guard lock(device_ranges_mutex_);
  std::erase_if(device_ranges_, [&](const auto& item) {
    if (item.second.module != handle) return false;
    uncount(item.second);
    return true;
  });
}

void Session::add_mapping(uint64_t address, uint64_t bytes) {
  add_device_range(address, {.bytes = bytes, .context = 0, .is_mapping = true});
}

std::vector<std::pair<uint64_t, uint64_t>> Session::take_mappings(uint64_t address,
                                                                  uint64_t bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  const std::lock_guard lock(device_ranges_mutex_);
  auto at = device_ranges_.lower_bound(address);
  while (at != device_ranges_.end() && at->first - address < bytes) {
    const bool inside = at->second.bytes <= bytes - (at->first - address);
    if (!at->second.is_mapping || !inside) {
      ++at;
      continue;
    }
    taken.emplace_back(at->first, at->second.bytes);
    uncount(at->second);
    at = device_ranges_.erase(at);
  }
  return taken;
}

bool Session::overlaps_mapping(uint64_t address, uint64_t bytes) const {
  const std::lock_guard lock(device_ranges_mutex_);
  const auto after = device_ranges_.lower_bound(address);
  if (after != device_ranges_.end() && after->first - address < bytes) return true;
  if (after == device_ranges_.begin()) return false;
  const auto& [begin, range] = *std::prev(after);
  return address - begin < range.bytes;
}

bool Session::is_guest_memory(uint64_t address, uint64_t len_bytes) const {
  {
    const std::lock_guard lock(device_ranges_mutex_);
    if (covers(device_ranges_, address, len_bytes)) return true;
  }
  return is_session_memory(address, len_bytes);
}

std::vector<uint64_t> Session::device_bytes() const {
  std::map<wire::Handle, uint64_t> of_contexts;
  {
    const std::lock_guard lock(device_ranges_mutex_);
    for (const auto& [address, range] : device_ranges_) {
      if (!range.of_graph) of_contexts[range.context] += range.bytes;
    }
  }
  std::vector<uint64_t> bytes(static_cast<size_t>(n_devices));
  for (const auto& [handle, context_bytes] : of_contexts) {
    const auto context = handles.context(handle);
    if (context != nullptr) bytes[static_cast<size_t>(context->device)] += context_bytes;
  }
  return bytes;
}

std::pair<uint64_t, uint64_t> Session::memory_and_peak() const {
  const std::lock_guard lock(device_ranges_mutex_);
  return {memory_bytes_, peak_memory_bytes_};
}

}  // namespace kvgpu::worker
