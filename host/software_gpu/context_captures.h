// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "context.h"

namespace software_gpu {

/// What concerns a whole context, or a green one, while one of its streams is captured: refused,
/// and the captures end.
[[nodiscard]] CUresult refuse_captures(Context& context, const GreenContext* only);

}  // namespace software_gpu
