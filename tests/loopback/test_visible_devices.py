# SPDX-License-Identifier: Apache-2.0
"""A program's CUDA_VISIBLE_DEVICES chooses its devices, as natively."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from framework.loopback import Loopback, loopback

# A line per device: what it is natively, and that it computes.
PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
found = cuda.cuInit(0)
n = ctypes.c_int(-1)
cuda.cuDeviceGetCount(ctypes.byref(n))
print(found, n.value)
for ordinal in range(max(n.value, 0)):
    uuid = (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGetUuid_v2(uuid, ordinal) == 0
    context, at, value = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4)) == 0
    assert cuda.cuMemsetD32_v2(at, 41 + ordinal, ctypes.c_size_t(1)) == 0
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(value), at, ctypes.c_size_t(4)) == 0
    print(bytes(uuid).hex(), value.value)
"""


@pytest.fixture(scope="module")
def three_devices() -> Iterator[Loopback]:
    with loopback(KVGPU_SOFTWARE_GPU_DEVICES="3") as running:
        yield running


def devices(host: Loopback, setting: str | None) -> list[str]:
    variables = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    return host.check(sys.executable, "-c", PROGRAM, **variables).splitlines()


def test_program_sees_the_devices_it_names_in_their_order(three_devices: Loopback) -> None:
    first, second, third = (line.split()[0] for line in devices(three_devices, None)[1:])
    uuid = f"GPU-{third[:8]}-{third[8:12]}-{third[12:16]}-{third[16:20]}-{third[20:]}"
    assert devices(three_devices, "2,0") == ["0 2", f"{third} 41", f"{first} 42"]
    assert devices(three_devices, f"{uuid},1") == ["0 2", f"{third} 41", f"{second} 42"]
    assert devices(three_devices, "0,7,1") == ["0 1", f"{first} 41"]


def test_program_that_names_none_has_none_and_is_told(three_devices: Loopback) -> None:
    done = three_devices.run(sys.executable, "-c", PROGRAM, CUDA_VISIBLE_DEVICES="")
    assert done.stdout.splitlines()[0].split()[0] == "100"
    assert "CUDA_VISIBLE_DEVICES names none of the 3 device(s)" in done.stderr


def test_device_named_twice_is_refused(three_devices: Loopback) -> None:
    done = three_devices.run(sys.executable, "-c", PROGRAM, CUDA_VISIBLE_DEVICES="1,1")
    assert done.stdout.splitlines()[0].split()[0] == "101"
    assert "CUDA_VISIBLE_DEVICES names 1 twice" in done.stderr
