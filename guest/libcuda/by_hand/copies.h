// SPDX-License-Identifier: Apache-2.0
// What copies.cpp and copies_2d.cpp share: what an address is for the GPU, and ways through the
// slab.
#pragma once

#include <cstddef>
#include <span>

#include "enqueue.h"
#include "memory_map.h"

namespace kvgpu::guest {

enum class Wait { NO, UNTIL_DONE };

// One side of a copy: [address, address + bytes) as the program gave it.
struct Operand {
  uint64_t address;
  uint64_t gpu_address = 0;  // where the GPU reaches it; 0: through the slab
  bool is_device = false;
  // Page-locked for the program, ordinary pages for us: what the stream has written or will have
  // read by then must be there before its bytes are touched.
  bool is_staged = false;
  bool sync_memops = false;
  bool may_be_refused = false;  // the device has not all access to it
  bool is_managed = false;      // device memory that the program may call host memory, too

  bool is_pageable() const { return gpu_address == 0; }
};
Operand operand(uint64_t address, uint64_t bytes);

// Of memory that the device may have no access to the driver's own answer is wanted.
inline void ask_where_needed(const Enqueue& enqueue, const Operand& to, const Operand& from) {
  if (to.may_be_refused || from.may_be_refused) enqueue.ask_driver();
}

// Has this number been reached; delivers the device's output where images print.
CUresult wait_for(const Enqueue& enqueue, uint64_t number);

// A capture cannot hold a copy whose bytes pass through the slab.
CUresult refuse_captured_pageable();

// Before ordinary pages of `side` are read or written on behalf of the stream.
CUresult settle_staged(const Enqueue& enqueue, const Operand& side);

CUresult stage_to_device(const Enqueue& enqueue, CUdeviceptr dst, const std::byte* src,
                         size_t bytes);
struct FromDevice {
  std::byte* dst;
  CUdeviceptr src;
  size_t bytes;
};
// They are there when it returns: all of them for one wait, where they are small.
CUresult stage_from_device(const Enqueue& enqueue, std::span<const FromDevice> copies);

}  // namespace kvgpu::guest
