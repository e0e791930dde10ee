// SPDX-License-Identifier: Apache-2.0
// Memory of pools that streams have freed, where the record that says so is not written yet.
//
// It goes before whatever record is written next, of whatever thread and stream, but for launches,
// fills and copies inside of the device that nobody waits for. The next allocation of the stream,
// of just the memory that it has freed, takes it: then neither is written, and nobody waits for the
// worker. So each allocation that the driver is asked for, and whatever orders streams, waits or
// asks what is in use, comes behind the frees before it: what is in use, now and at most, and which
// memory another stream may reuse and after which work are the driver's to say, as natively. In
// sessions of several devices nothing is held back: pools are asked about on any of them. Nor does
// a kernel that may begin before the one before it has ended (an attribute of its launch) do so
// with memory that was taken between them: launch.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kvgpu/opcodes.gen.h"
#include "kvgpu/records.h"

namespace kvgpu::guest {

struct FreedBlock {
  uint64_t address, bytes;
  wire::Handle pool, stream;
  int device;  // of the stream
};

// Locked by its owner, as the ring's producer is.
class FreedMemory {
 public:
  bool empty() const { return n_ == 0; }
  bool is_full() const { return n_ == blocks_.size(); }
  std::span<const FreedBlock> blocks() const { return {blocks_.data(), n_}; }
  void clear() { n_ = 0; }

  // May records of this kind be written first? The memory is the stream's a little longer.
  static bool may_precede(wire::Op op) {
    switch (op) {
      case wire::Op::cuLaunchKernel:
      case wire::Op::cuLaunchKernelEx:
      case wire::Op::cuMemsetD8Async:
      case wire::Op::cuMemsetD16Async:
      case wire::Op::cuMemsetD32Async:
      case wire::Op::cuMemcpyDtoDAsync_v2:
        return true;
      default:
        return false;
    }
  }

  void add(const FreedBlock& block) { blocks_[n_++] = block; }

  // The address of one, the last that was freed.
  std::optional<uint64_t> take(wire::Handle stream, wire::Handle pool, uint64_t bytes) {
    for (size_t i = n_; i-- > 0;) {
      const FreedBlock block = blocks_[i];
      if (block.stream != stream || block.pool != pool || block.bytes != bytes) continue;
      blocks_[i] = blocks_[--n_];
      return block.address;
    }
    return std::nullopt;
  }

 private:
  std::array<FreedBlock, 16> blocks_;  // a program that frees all it has need not wait for the end
  size_t n_ = 0;
};

}  // namespace kvgpu::guest
