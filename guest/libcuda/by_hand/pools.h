// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvgpu/records.h"

namespace kvgpu::guest {

// The pool that cuMemAllocAsync takes from; 0: the default one, which nobody has asked for yet.
wire::Handle current_pool(int device);

}  // namespace kvgpu::guest
