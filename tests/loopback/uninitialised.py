#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Call every served entry point where there is no CUDA: before cuInit, and in forked children.

Standard input: a JSON list of names. Prints `done`, or which name did not answer
CUDA_ERROR_NOT_INITIALIZED.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading

NOT_INITIALIZED = 3
CHILD_LIMIT_S = 20
N_CHILDREN = 20
N_ARGUMENTS = 16

cuda = ctypes.CDLL("libcuda.so.1")


def expect_no_cuda(names: list[str]) -> None:
    for name in names:
        # Zeroes: as integers, null pointers and null handles.
        result = getattr(cuda, name)(*[ctypes.c_void_p()] * N_ARGUMENTS)
        if result != NOT_INITIALIZED:
            raise SystemExit(f"{name}: {result}")


def in_a_child(names: list[str]) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_LIMIT_S)
        try:
            expect_no_cuda(names)
        except SystemExit as wrong:
            print(wrong, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise SystemExit(f"a forked child: status {status}")


def check(result: int) -> None:
    assert result == 0, f"CUDA error {result}"


def main() -> None:
    names = json.load(sys.stdin)
    expect_no_cuda(names)
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    stop = threading.Event()

    # Inside our locks most of the time.
    def allocate() -> None:
        check(cuda.cuCtxSetCurrent(context))
        address, stream = ctypes.c_uint64(), ctypes.c_void_p()
        while not stop.is_set():
            check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)))
            check(cuda.cuMemFree_v2(address))
            check(cuda.cuStreamCreate(ctypes.byref(stream), 0))
            check(cuda.cuStreamDestroy_v2(stream))

    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    check(cuda.cuCtxSetCurrent(context))
    try:
        for _ in range(N_CHILDREN):
            in_a_child(names)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    check(cuda.cuCtxSynchronize())
    print("done")


if __name__ == "__main__":
    main()
