#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Work on a host of CUDA 12.4, with a call newer than its driver: ends with 0 if all is right."""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


def check(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def main() -> None:
    check("cuInit", 0)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    check("cuCtxSetCurrent", context)
    check("cuStreamCreate", ctypes.byref(stream), 1)
    address = ctypes.c_uint64()
    check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4096))
    check("cuMemsetD8Async", address, ctypes.c_ubyte(7), ctypes.c_size_t(4096), stream)
    check("cuStreamSynchronize", stream)
    back = ctypes.create_string_buffer(4096)
    check("cuMemcpyDtoH_v2", back, address, ctypes.c_size_t(4096))
    assert back.raw == b"\x07" * 4096
    # 12.8's form is served by 12.4's where the worker knows how.
    events = [ctypes.c_void_p(), ctypes.c_void_p()]
    for event in events:
        check("cuEventCreate", ctypes.byref(event), 0)
        check("cuEventRecord", event, stream)
    check("cuEventSynchronize", events[1])
    elapsed_ms = ctypes.c_float(-1)
    check("cuEventElapsedTime_v2", ctypes.byref(elapsed_ms), *events)
    assert elapsed_ms.value >= 0
    check("cuMemFree_v2", address)
    check("cuDevicePrimaryCtxRelease_v2", 0)


if __name__ == "__main__":
    main()
