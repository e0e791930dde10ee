# SPDX-License-Identifier: Apache-2.0
"""A program to trace: `calls`, `threads`, `fork`, `crash`, or `leave` (by _exit)."""

import ctypes
import os
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")
COPY_BYTES = 1 << 20
N_THREADS, N_CALLS = 4, 50


def must(result: int) -> None:
    assert result == 0, result


def compute() -> None:
    """Every class of calls: local, sync, bulk, async, completion, refused; one that fails."""
    version, context = ctypes.c_int(), ctypes.c_void_p()
    memory, bytes_ = ctypes.c_uint64(), ctypes.create_string_buffer(COPY_BYTES)
    must(cuda.cuDriverGetVersion(ctypes.byref(version)))  # before cuInit
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(COPY_BYTES)))
    must(cuda.cuMemcpyHtoD_v2(memory, bytes_, ctypes.c_size_t(COPY_BYTES)))
    must(cuda.cuMemsetD8Async(memory, 7, ctypes.c_size_t(16), None))
    must(cuda.cuStreamSynchronize(None))
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(0)) == 1
    module = ctypes.c_void_p()
    assert cuda.cuModuleLoad(ctypes.byref(module), b'/no "such"\n file') != 0
    assert cuda.cuGLInit() == 801


def ask() -> None:
    for _ in range(N_CALLS):
        cuda.cuCtxGetDevice(ctypes.byref(ctypes.c_int()))


compute()
match sys.argv[1]:
    case "threads":
        threads = [threading.Thread(target=ask) for _ in range(N_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    case "fork":
        child = os.fork()
        if child == 0:
            assert cuda.cuInit(0) == 3  # CUDA_ERROR_NOT_INITIALIZED: as natively
            os.execv(sys.executable, [sys.executable, __file__, "calls"])
        print("child", child, flush=True)
        os.waitpid(child, 0)
    case "crash":
        ctypes.memset(0, 0, 1)
    case "leave":
        os._exit(0)
