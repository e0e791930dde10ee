// SPDX-License-Identifier: Apache-2.0
#include "null_driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kvgpu/layout.h"

namespace kvgpu::fuzz {

namespace {

constexpr uint64_t MAX_CALLS = 20000;  // of one input; a loop over answers ends
constexpr uint64_t FIRST_HANDLE = 0x10000, HANDLE_STEP = 16;
constexpr uint64_t MAX_ALLOCATION_BYTES = 1 * TIB;
constexpr uint64_t ALLOCATION_STEP_BYTES = 2 * MIB;

}  // namespace

NullDriver& null_driver() {
  static NullDriver driver;
  return driver;
}

void breach(const char* what, uint64_t a, uint64_t b) {
  std::fprintf(stderr, "null driver: %s: 0x%llx, 0x%llx\n", what,
               static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
  std::abort();
}

void NullDriver::reset(uint64_t window, Range slab, Range progress) {
  window_ = window;
  next_address_ = window - DEVICE_WINDOW_BYTES;
  next_handle_ = FIRST_HANDLE;
  random_ = 0;
  n_calls_ = 0;
  progress_ = progress;
  session_memory_ = {slab};
  device_memory_.clear();
  graph_memory_.clear();
  handles_.clear();
}

CUresult NullDriver::begin(const char* name) {
  call_ = name;
  if (++n_calls_ > MAX_CALLS) return CUDA_ERROR_INVALID_VALUE;
  called_.insert(name);
  if (random_ == 0) return CUDA_SUCCESS;
  random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
  constexpr CUresult FAULTS[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                 CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_NOT_SUPPORTED};
  return (random_ >> 40) % 32 == 0 ? FAULTS[random_ >> 60 & 3] : CUDA_SUCCESS;
}

void* NullDriver::make_handle(const char* type) {
  next_handle_ += HANDLE_STEP;
  auto* const handle = reinterpret_cast<void*>(next_handle_);
  handles_[handle] = type;
  return handle;
}

void NullDriver::check_handle(const char* type, const void* handle) const {
  // Null, and CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
  if (reinterpret_cast<uint64_t>(handle) <= 2) return;
  const auto found = handles_.find(handle);
  if (found == handles_.end()) {
    std::fprintf(stderr, "%s: %s\n", call_, type);
    breach("a handle that was not made", reinterpret_cast<uint64_t>(handle), 0);
  }
  // CUDA 13.0 cuda.h: a CUkernel may stand in a CUfunction's place.
  const bool kernel = std::strcmp(found->second, "CUkern_st") == 0;
  if (std::strcmp(found->second, type) != 0 && !(kernel && std::strcmp(type, "CUfunc_st") == 0)) {
    std::fprintf(stderr, "%s: a %s in the place of a %s\n", call_, found->second, type);
    breach("a handle of another type", reinterpret_cast<uint64_t>(handle), 0);
  }
}

CUresult NullDriver::allocate(uint64_t* address, uint64_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > MAX_ALLOCATION_BYTES || next_address_ + bytes > window_) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = next_address_;
  device_memory_[next_address_] = bytes;
  next_address_ += (bytes + ALLOCATION_STEP_BYTES - 1) & ~(ALLOCATION_STEP_BYTES - 1);
  return CUDA_SUCCESS;
}

CUresult NullDriver::allocate_for_graph(uint64_t* address, uint64_t bytes) {
  const CUresult result = allocate(address, bytes);
  if (result == CUDA_SUCCESS) graph_memory_.insert(*address);
  return result;
}

CUresult NullDriver::free(uint64_t address) {
  if (graph_memory_.contains(address)) return CUDA_SUCCESS;  // its address stays
  return device_memory_.erase(address) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool NullDriver::is_known(uint64_t address, uint64_t bytes) const {
  for (const Range& range : session_memory_) {
    if (range.contains(address, bytes)) return true;
  }
  const auto after = device_memory_.upper_bound(address);
  if (after == device_memory_.begin()) return false;
  const auto& [begin, len_bytes] = *std::prev(after);
  return Range{begin, len_bytes}.contains(address, bytes);
}

void NullDriver::check_memory(const char* what, uint64_t address, uint64_t bytes) const {
  if (bytes == 0 || is_known(address, bytes)) return;
  std::fprintf(stderr, "%s: %s\n", call_, what);
  breach("memory that is not the guest's", address, bytes);
}

void NullDriver::check_registrable(uint64_t address, uint64_t bytes) const {
  if (progress_.contains(address, bytes)) return;
  check_memory("registered", address, bytes);
}

bool NullDriver::is_progress_word(uint64_t address) const {
  return progress_.contains(address, sizeof(uint64_t)) && address % sizeof(uint64_t) == 0;
}

}  // namespace kvgpu::fuzz
