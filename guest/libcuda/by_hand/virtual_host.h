// SPDX-License-Identifier: Apache-2.0
// Host memory in virtual memory management: an extent of the region, which the program and kernels
// see where it is mapped.
#pragma once

#include "call.h"
#include "cuda_api.h"
#include "kvgpu/memory_calls.h"
#include "memory_map.h"

namespace kvgpu::guest {

bool is_on_host(const CUmemLocation& location);

// cuMemCreate.
CUresult create_on_host(const Call& call, CUmemGenericAllocationHandle* handle, size_t size,
                        const CUmemAllocationProp& prop, unsigned long long flags);

// Nobody has access yet. A forked child has no CUDA, and so not this memory.
[[nodiscard]] bool show_host_memory(uint64_t address, uint64_t bytes,
                                    const wire::HostPhysical& host);

// May the program be given this access? To whole mappings of host memory.
CUresult check_host_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc& access);
CUresult set_host_access(CUdeviceptr ptr, size_t size, CUmemAccess_flags flags);
CUresult access_of_host_memory(unsigned long long* flags, const CUmemLocation& location,
                               const MemoryRange& range);

}  // namespace kvgpu::guest
