# SPDX-License-Identifier: Apache-2.0
"""The software GPU as a driver: its devices, the images that it loads, and wild addresses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from framework.loopback import BUILD

LIBRARY = BUILD / "host/software_gpu/libcuda.so.1"
INVALID_PTX, NO_BINARY_FOR_GPU = 218, 209
ILLEGAL_ADDRESS, MISALIGNED_ADDRESS = 700, 716

HEAD = """
import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL(LIBRARY)
assert cuda.cuInit(0) == 0
"""
DEVICES = """
count = c_int()
assert cuda.cuDeviceGetCount(byref(count)) == 0
for i in range(count.value):
    name, n_bytes = ctypes.create_string_buffer(100), c_size_t()
    assert cuda.cuDeviceGetName(name, 100, i) == 0
    assert cuda.cuDeviceTotalMem_v2(byref(n_bytes), i) == 0
    version = []
    for attribute in (75, 76):
        value = c_int()
        assert cuda.cuDeviceGetAttribute(byref(value), attribute, i) == 0
        version.append(value.value)
    print(name.value.decode(), n_bytes.value >> 20, *version, sep=";")
"""
KERNEL = """
context, module, function = c_void_p(), c_void_p(), c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
ptx = b'''.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 to) {
  .reg .b64 a; ld.param.u64 a, [to]; st.global.u32 [a], 7; ret; }'''
assert cuda.cuModuleLoadData(byref(module), ptx) == 0
assert cuda.cuModuleGetFunction(byref(function), module, b"k") == 0
good = c_uint64()
assert cuda.cuMemAlloc_v2(byref(good), c_size_t(4096)) == 0
def store(address):
    value = c_uint64(address)
    pointers = (c_void_p * 1)(ctypes.addressof(value))
    launched = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
    return launched or cuda.cuCtxSynchronize()
assert store(good.value) == 0
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    head = HEAD.replace("LIBRARY", repr(str(LIBRARY)))
    return subprocess.run(
        [sys.executable, "-c", head + script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def output(script: str, **variables: str) -> list[str]:
    done = run(script, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_devices_are_as_many_and_as_large_as_configured() -> None:
    lines = output(DEVICES, KVGPU_SOFTWARE_GPU_DEVICES="3", KVGPU_SOFTWARE_GPU_MEMORY_MIB="256")
    assert len(lines) == 3
    assert {line.split(";")[1] for line in lines} == {"256"}
    (line,) = output(DEVICES)
    assert line.split(";")[1] == "4096"


def test_devices_say_sm_80_and_a_plain_name() -> None:
    (line,) = output(DEVICES)
    name, _, major, minor = line.split(";")
    assert (major, minor) == ("8", "0")
    assert name.isascii()
    assert "software" in name.lower()
    assert "nvidia" not in name.lower()


def test_devices_hold_what_was_configured_and_no_more() -> None:
    script = (
        KERNEL
        + """
for n_mib, expected in ((300, 2), (100, 0)):
    got = cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(n_mib << 20))
    assert got == expected, (n_mib, got)
"""
    )
    output(script, KVGPU_SOFTWARE_GPU_MEMORY_MIB="256")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KVGPU_SOFTWARE_GPU_DEVICES", "0"),
        ("KVGPU_SOFTWARE_GPU_DEVICES", "17"),
        ("KVGPU_SOFTWARE_GPU_DEVICES", "two"),
        ("KVGPU_SOFTWARE_GPU_MEMORY_MIB", "0"),
        ("KVGPU_SOFTWARE_GPU_MEMORY_MIB", "-1"),
        ("KVGPU_SOFTWARE_GPU_MEMORY_MIB", "4G"),
    ],
)
def test_devices_of_a_bad_configuration_are_refused(variable: str, value: str) -> None:
    done = run(DEVICES, **{variable: value})
    assert done.returncode != 0
    assert variable in done.stderr, done.stderr


def test_images_of_text_that_is_wrong_name_line_and_instruction() -> None:
    script = (
        KERNEL
        + """
log = ctypes.create_string_buffer(1000)
options, values = (c_int * 2)(5, 6), (c_void_p * 2)(ctypes.addressof(log), 1000)
wrong = ptx.replace(b"st.global.u32 [a], 7", b"\\n  wgmma.fence.sync.aligned")
assert cuda.cuModuleLoadDataEx(byref(module), wrong, 2, options, values) == 218
print(log.value.decode())
"""
    )
    (log,) = output(script)
    assert "line 6" in log
    assert "wgmma.fence.sync.aligned" in log


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("good.value + (1 << 40)", ILLEGAL_ADDRESS),
        ("8", ILLEGAL_ADDRESS),
        ("good.value + 2", MISALIGNED_ADDRESS),
        ("freed", ILLEGAL_ADDRESS),
    ],
)
def test_wild_addresses_are_sticky_errors(address: str, expected: int) -> None:
    script = (
        KERNEL
        + f"""
other = c_uint64()
assert cuda.cuMemAlloc_v2(byref(other), c_size_t(4096)) == 0
freed = other.value
assert cuda.cuMemFree_v2(other) == 0
assert store({address}) == {expected}
assert cuda.cuCtxSynchronize() == {expected}
assert store(good.value) == {expected}
assert cuda.cuMemAlloc_v2(byref(other), c_size_t(16)) == {expected}
"""
    )
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert "kvgpu software GPU: kernel k: " in done.stderr
    assert "thread (0,0,0) of block (0,0,0)" in done.stderr
