# SPDX-License-Identifier: Apache-2.0
"""cut_images.py FILE: images of which only the beginning is readable, a huge one, then FILE.

Prints the CUresults' numbers: the set of those of the first, that of the huge one, that of FILE.
"""

import ctypes
import mmap
import struct
import sys
from pathlib import Path

MIB, N_IMAGES = 1 << 20, 200
PROT_NONE = 0
cuda = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None, use_errno=True)


def fatbin_header(entries_bytes: int) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, entries_bytes)


def main() -> None:
    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    memory = mmap.mmap(-1, 16 * MIB)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(begin + 12 * MIB), 4 * MIB, PROT_NONE) == 0

    def load() -> int:
        return int(cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_void_p(begin)))

    memory[:16] = fatbin_header(14 * MIB)
    print(*sorted({load() for _ in range(N_IMAGES)}))
    memory[:16] = fatbin_header(2 << 30)
    print(load())
    good = Path(sys.argv[1]).read_bytes()
    print(cuda.cuModuleLoadData(ctypes.byref(module), good), flush=True)


main()
