// SPDX-License-Identifier: Apache-2.0
// The values by which graphs choose what they run.
#pragma once

#include <cuda.h>

#include <atomic>

namespace software_gpu {

struct Context;

/// What a CUgraphConditionalHandle names. Kernels set it, conditional nodes read it.
struct Condition {
  Condition(Context& context, unsigned default_value, bool assigns_default);
  ~Condition();
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  CUgraphConditionalHandle handle() const { return reinterpret_cast<uintptr_t>(this); }
  Context& context;
  const unsigned default_value;
  const bool assigns_default;  // at each launch
  std::atomic<unsigned> value{0};
};

/// cudaGraphSetConditional. False: nothing has this handle.
bool set_condition(CUgraphConditionalHandle handle, unsigned value);

}  // namespace software_gpu
