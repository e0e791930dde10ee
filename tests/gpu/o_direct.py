# SPDX-License-Identifier: Apache-2.0
"""Reads of a file with O_DIRECT into pinned memory, which then goes to the GPU and comes back.

python3 o_direct.py FOLDER, on a file system that has O_DIRECT.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import random
import sys
from pathlib import Path
from typing import Any

N_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        raise SystemExit(f"{name}: CUDA error {result}")


def write_file(path: Path) -> str:
    """Write a file of noise to the disk; return its digest."""
    data = random.Random(1).randbytes(N_BYTES)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return hashlib.sha256(data).hexdigest()


def allocate() -> tuple[Any, ctypes.c_uint64]:
    """Return a pinned buffer and a device pointer of the same size, in the primary context."""
    context, pinned, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(N_BYTES), 0)
    call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(N_BYTES))
    assert pinned.value
    return (ctypes.c_char * N_BYTES).from_address(pinned.value), device


def read_directly(path: Path, pinned: Any) -> str:
    """Fill the buffer from the file, chunk by chunk; return "ok" or what was wrong."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for offset in range(0, N_BYTES, CHUNK_BYTES):
            chunk = memoryview(pinned)[offset : offset + CHUNK_BYTES]
            if os.preadv(fd, [chunk], offset) != CHUNK_BYTES:
                return f"short at {offset}"
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    finally:
        os.close(fd)
    return "ok"


def main() -> int:
    path = Path(sys.argv[1], f"o_direct.{os.getpid()}")
    digest = write_file(path)
    pinned, device = allocate()
    outcome = read_directly(path, pinned)
    path.unlink()
    print(f"O_DIRECT into pinned memory: {outcome}")
    if outcome != "ok":
        return 1
    print(f"read: {hashlib.sha256(pinned).hexdigest() == digest}")
    stream, back = ctypes.c_void_p(), ctypes.create_string_buffer(N_BYTES)
    call("cuStreamCreate", ctypes.byref(stream), 0)
    call("cuMemcpyHtoDAsync_v2", device, pinned, ctypes.c_size_t(N_BYTES), stream)
    call("cuStreamSynchronize", stream)
    call("cuMemcpyDtoH_v2", back, device, ctypes.c_size_t(N_BYTES))
    print(f"through the GPU: {hashlib.sha256(back).hexdigest() == digest}, sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
