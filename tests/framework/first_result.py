# SPDX-License-Identifier: Apache-2.0
"""How long it takes from the start of a program to what the GPU has computed for it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from framework.loopback import Loopback
from framework.waiting import eventually
from framework.workers import prestarted_pids

_PROGRAM = """
import ctypes, time
began = time.perf_counter()
cuda = ctypes.CDLL("libcuda.so.1")
context, memory, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
assert cuda.cuInit(0) == 0
initialised = time.perf_counter()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
have_context = time.perf_counter()
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4)) == 0
assert cuda.cuMemsetD32_v2(memory, 7, ctypes.c_size_t(1)) == 0
assert cuda.cuMemcpyDtoH_v2(ctypes.byref(word), memory, ctypes.c_size_t(4)) == 0
assert word.value == 7
done = time.perf_counter()
print(initialised - began, have_context - initialised, done - have_context)
"""


class Times(NamedTuple):
    """Of one program, in seconds; the median of each part if of several."""

    total_s: float
    init_s: float  # loading the library, cuInit
    context_s: float
    rest_s: float  # allocation, memset, copy back

    def __str__(self) -> str:
        total, init, context, rest = (1000 * each for each in self)
        return f"{total:.0f} ms (cuInit {init:.0f}, context {context:.0f}, result {rest:.0f})"


def median(times: list[Times]) -> Times:
    return Times(*(statistics.median(part) for part in zip(*times, strict=True)))


def first_result(host: Loopback, socket_path: str) -> Times:
    """Run a program in the `kvgpu run` of this socket (Loopback.open_run)."""
    environment = host.environment | {"KVGPU_SOCKET": socket_path}
    environment["LD_LIBRARY_PATH"] = environment["KVGPU_LIBCUDA_DIR"]
    return _run(environment)


def native_first_result() -> Times:
    """Run the program on this machine's own libcuda.so.1."""
    return _run(dict(os.environ))


def _run(environment: dict[str, str]) -> Times:
    begin_s = time.perf_counter()
    command = [sys.executable, "-S", "-c", _PROGRAM]
    printed = subprocess.check_output(command, env=environment, text=True, timeout=120)
    return Times(time.perf_counter() - begin_s, *map(float, printed.split()))


def waiting(host: Loopback) -> set[int]:
    return prestarted_pids(host.runtime_dir)


def is_full(host: Loopback, n_workers: int, or_more: bool = False) -> bool:
    """Are so many ready, and not only started: such one sleeps in recvmsg()."""
    pids = waiting(host)
    has_enough = len(pids) == n_workers or (or_more and len(pids) > n_workers)
    return has_enough and all(_sleeps_in_a_socket(pid) for pid in pids)


def _sleeps_in_a_socket(pid: int) -> bool:
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return False
    return call == "47"  # recvmsg


def alternate(
    pooled: Loopback, bare: Loopback, n_pairs: int, n_waiting: int
) -> tuple[Times, Times]:
    """Return the medians of `n_pairs`, with the pool and without; raise where it gave none."""
    with_pool: list[Times] = []
    without: list[Times] = []
    with pooled.open_run() as pooled_run, bare.open_run() as bare_run:
        for _ in range(n_pairs):
            for host, socket_path, times in (
                (pooled, pooled_run, with_pool),
                (bare, bare_run, without),
            ):
                # A worker that ends holds the driver up, for as long as a context takes to go.
                assert eventually(lambda: not pooled.worker_pids() + bare.worker_pids(), 60)
                assert eventually(lambda: is_full(pooled, n_waiting), 60), pooled.logs()
                ready = waiting(pooled)
                times.append(first_result(host, socket_path))
                assert host is bare or ready - waiting(pooled), "the program took none that waited"
    return median(with_pool), median(without)
