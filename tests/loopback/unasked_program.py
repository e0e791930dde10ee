# SPDX-License-Identifier: Apache-2.0
"""Calls that need not wait for the host, each at least twice: the first may learn something."""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
INVALID_VALUE = 1
KERNEL = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) { ret; }
"""
MEMORY_TYPE, MULTIPROCESSORS, MAX_THREADS = 2, 16, 0  # of a pointer, a device, a function
DISABLE_TIMING = 2
SHARED_BYTES = 8  # an attribute of a function
SETTINGS = (2048, 1024)


def must(result: int) -> None:
    assert result == 0, result


def launch(function: ctypes.c_void_p, stream: ctypes.c_void_p, block: int) -> int:
    values = [ctypes.c_uint64(i) for i in range(3)]
    params = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
    result: int = cuda.cuLaunchKernel(function, 1, 1, 1, block, 1, 1, 0, stream, params, None)
    return result


def main() -> None:
    context, module, function = (ctypes.c_void_p() for _ in range(3))
    memory, number = ctypes.c_uint64(), ctypes.c_int()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096)))
    must(cuda.cuModuleLoadData(ctypes.byref(module), KERNEL))
    must(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k"))
    must(launch(function, ctypes.c_void_p(), 32))
    must(cuda.cuCtxSynchronize())
    for _ in range(1 + 3):  # at first the host is asked whether it takes them
        for n_bytes in SETTINGS:
            must(cuda.cuFuncSetAttribute(function, SHARED_BYTES, n_bytes))
    for _ in range(3):
        stream, event = ctypes.c_void_p(), ctypes.c_void_p()
        must(cuda.cuStreamCreate(ctypes.byref(stream), 1))
        must(cuda.cuEventCreate(ctypes.byref(event), DISABLE_TIMING))
        must(cuda.cuEventRecord(event, stream))
        must(cuda.cuEventSynchronize(event))  # recorded behind nothing
        must(launch(function, stream, 32))
        must(cuda.cuEventRecord(event, stream))
        must(cuda.cuStreamSynchronize(stream))
        must(cuda.cuEventQuery(event))
        assert launch(function, stream, 0) == INVALID_VALUE
        assert launch(function, stream, 4096) == INVALID_VALUE
        must(cuda.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())))
        must(cuda.cuCtxGetDevice(ctypes.byref(number)))
        must(cuda.cuDeviceGetAttribute(ctypes.byref(number), MULTIPROCESSORS, 0))
        must(cuda.cuFuncGetAttribute(ctypes.byref(number), MAX_THREADS, function))
        must(cuda.cuPointerGetAttribute(ctypes.byref(number), MEMORY_TYPE, memory))
        must(cuda.cuEventDestroy_v2(event))
        must(cuda.cuStreamDestroy_v2(stream))


if __name__ == "__main__":
    main()
