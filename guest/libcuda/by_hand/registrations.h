// SPDX-License-Identifier: Apache-2.0
// Pages of the program that cuMemHostRegister moved into the pinned heap, where the GPU reaches
// them. The program keeps its addresses: they show the heap's pages now.
#pragma once

#include <cstdint>
#include <mutex>

#include "cuda_api.h"

namespace kvgpu::guest {

enum class Pages {
  PRIVATE,    // anonymous, readable and writable: can be moved
  OTHER,      // shared, of a file, protected, the stack
  NOT_THERE,  // a part is not mapped, or not readable
};
Pages pages_of(uint64_t begin, uint64_t bytes);

// Held around what follows, and while the process forks.
std::mutex& registrations_mutex();

// Whole private pages into the heap, at *heap. While their contents are copied, threads that write
// to them wait. CUDA_ERROR_OUT_OF_MEMORY: the region is full.
CUresult move_in(uint64_t begin, uint64_t bytes, uint64_t* heap);

// Back into private memory, as far as the program has not mapped something else there.
void move_back(uint64_t begin, uint64_t bytes, uint64_t heap);

}  // namespace kvgpu::guest
