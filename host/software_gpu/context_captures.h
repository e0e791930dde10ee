// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "context.h"

namespace software_gpu {

/// The stream of a handle, for work: none while its capture is broken. Work that would wait for a
/// capture ends it.
[[nodiscard]] CUresult find_to_enqueue(Context& context, CUstream handle,
                                       std::shared_ptr<Stream>* stream);

/// What concerns a whole context, or a green one, while one of its streams is captured: refused,
/// and the captures end.
[[nodiscard]] CUresult refuse_captures(Context& context, const GreenContext* only);

}  // namespace software_gpu
