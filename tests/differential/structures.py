# SPDX-License-Identifier: Apache-2.0
"""The structures that differential programs pass: the type of each member, in cuda.h's order.

`ptr` is whatever a symbol stands for, `params` an array of kernel parameters, `fn` the executor's
host function; a number is so many bytes of zero.
"""

from __future__ import annotations

_LOCATION = "u32 i32"
_COPY2D_END = "u64 u64 u32 ptr ptr ptr u64"  # XInBytes, Y, MemoryType, Host, Device, Array, Pitch
_COPY3D_END = "u64 u64 u64 u64 u32 ptr ptr ptr ptr u64 u64"  # with Z, level and reserved

STRUCTURES: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        "CUDA_MEMCPY2D": f"{_COPY2D_END} {_COPY2D_END} u64 u64",
        "CUDA_MEMCPY3D": f"{_COPY3D_END} {_COPY3D_END} u64 u64 u64",
        "CUDA_MEMSET_NODE_PARAMS": "ptr u64 u32 u32 u64 u64",
        "CUDA_KERNEL_NODE_PARAMS": "ptr u32 u32 u32 u32 u32 u32 u32 params ptr ptr ptr",
        "CUDA_HOST_NODE_PARAMS": "fn ptr",
        "CUDA_ARRAY_DESCRIPTOR": "u64 u64 u32 u32",
        "CUDA_ARRAY3D_DESCRIPTOR": "u64 u64 u64 u32 u32 u32",
        "CUlaunchConfig": "u32 u32 u32 u32 u32 u32 u32 ptr ptr u32",
        "CUmemLocation": _LOCATION,
        "CUmemAllocationProp": f"u32 u32 {_LOCATION} ptr 8",
        "CUmemAccessDesc": f"{_LOCATION} u32",
        "CUmemPoolProps": f"u32 u32 {_LOCATION} ptr u64 56",
        "CUstreamBatchMemOpParams": "u32 ptr u64 u32 ptr 8",
    }.items()
}
