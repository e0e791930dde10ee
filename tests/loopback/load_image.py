# SPDX-License-Identifier: Apache-2.0
"""load_image.py FILE...: cuModuleLoad of each; prints the CUresult's number, one line each."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def check(result: int) -> None:
    if result != 0:
        sys.exit(f"a call before the load answered {result}")


def main() -> None:
    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    for path in sys.argv[1:]:
        print(cuda.cuModuleLoad(ctypes.byref(module), path.encode()), flush=True)


main()
