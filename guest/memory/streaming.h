// SPDX-License-Identifier: Apache-2.0
// Copies into and out of memory that is not cached: whole lines at a time, past the cache. Plain
// loads there cost a bus cycle for each 8 bytes.
#pragma once

#include <cstddef>

namespace kvgpu::memory {

// Non-temporal stores, then a store fence: what is committed afterwards is committed after it.
void stream_in(void* to, const void* from, size_t bytes);

// Non-temporal loads (SSE4.1; without it plain ones), behind a load fence.
void stream_out(void* to, const void* from, size_t bytes);

}  // namespace kvgpu::memory
