// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "objects.h"

namespace kvgpu::guest {

// The default stream of a context or a green context, not yet known to the worker.
CUresult make_legacy_stream(Context& context);
void drop_legacy_stream(Context& context);

}  // namespace kvgpu::guest
