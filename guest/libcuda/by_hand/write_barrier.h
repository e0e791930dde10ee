// SPDX-License-Identifier: Apache-2.0
// While it lives, a thread that runs into the write protection of the range waits instead of
// getting a SIGSEGV. One at a time in the process.
//
// The handler stays installed, for threads that fault before and are scheduled after; everything
// else goes on to the handler that was there before.
#pragma once

#include <cstdint>

namespace kvgpu::guest {

class WriteBarrier {
 public:
  WriteBarrier(uint64_t begin, uint64_t bytes);
  ~WriteBarrier();
  WriteBarrier(const WriteBarrier&) = delete;
  WriteBarrier& operator=(const WriteBarrier&) = delete;
};

}  // namespace kvgpu::guest
