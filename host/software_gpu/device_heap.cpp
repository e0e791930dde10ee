// SPDX-License-Identifier: Apache-2.0
#include "device_heap.h"

#include <algorithm>

namespace software_gpu {

namespace {

constexpr uint64_t UNIT_BYTES = 16;  // CUDA C++ Programming Guide: malloc's results are so aligned

}  // namespace

DeviceHeap::~DeviceHeap() {
  static_cast<void>(memory_.release(base_, MemoryKind::MODULE, MemoryKind::MODULE));
}

uint64_t DeviceHeap::allocate(uint64_t n_bytes) {
  if (n_bytes > INT64_MAX) return 0;
  const uint64_t wanted = std::max(n_bytes + UNIT_BYTES - 1, UNIT_BYTES) / UNIT_BYTES * UNIT_BYTES;
  std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(free_, [wanted](const auto& piece) { return piece.second >= wanted; });
  if (found == free_.end()) return 0;
  const auto [address, size] = *found;
  free_.erase(found);
  if (size > wanted) free_.emplace(address + wanted, size - wanted);
  used_.emplace(address, wanted);
  return address;
}

bool DeviceHeap::free(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = used_.find(address);
  if (found == used_.end()) return false;
  auto piece = free_.emplace(address, found->second).first;
  used_.erase(found);
  const auto after = std::next(piece);
  if (after != free_.end() && piece->first + piece->second == after->first) {
    piece->second += after->second;
    free_.erase(after);
  }
  if (piece == free_.begin()) return true;
  const auto before = std::prev(piece);
  if (before->first + before->second != piece->first) return true;
  before->second += piece->second;
  free_.erase(piece);
  return true;
}

}  // namespace software_gpu
