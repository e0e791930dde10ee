# SPDX-License-Identifier: Apache-2.0
"""What a program sees under the client's settings: a probe, and where the files are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from framework.loopback import Loopback

# cuInit's result; then, if that is 0: devices, total MiB of device 0 in two ways, and what
# allocations of 1, 1 and 62 MiB give.
PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
status = cuda.cuInit(0)
print("init", status)
if status == 0:
    count, total, free = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    print("devices", count.value)
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
    print("total", total.value >> 20)
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    results = []
    for mib in (1, 1, 62):
        results.append(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20)))
    print("alloc", *results)
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print("info", free.value >> 20, total.value >> 20)
"""


def user_file(folder: Path, text: str) -> dict[str, str]:
    """Write the user's client.toml; return the variables under which it is found."""
    (folder / "kvgpu").mkdir(parents=True)
    (folder / "kvgpu/client.toml").write_text(text)
    return {"XDG_CONFIG_HOME": str(folder)}


def probe(
    host: Loopback, *prefix: str, **variables: str
) -> tuple[dict[str, str], subprocess.CompletedProcess[str]]:
    """Return what the probe printed, by its first words, and the process."""
    done = host.run(*prefix, sys.executable, "-c", PROBE, **variables)
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {name: rest for name, _, rest in lines}, done
