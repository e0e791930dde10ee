// SPDX-License-Identifier: Apache-2.0
// What is exported but not served: CUDA_ERROR_NOT_SUPPORTED, one log line per name, counted. No
// cuda.h here.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvgpu::guest {

struct RefusedName {
  const char* name;
  const char* why;
};
extern const RefusedName REFUSED_NAMES[];
extern const int N_REFUSED_NAMES;
extern std::atomic<uint64_t> refused_calls[];

int refuse(int index);

// The same for a part of a served function, or a slot of a private table.
int refuse_part(const char* what);

}  // namespace kvgpu::guest
