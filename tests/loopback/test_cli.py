# SPDX-License-Identifier: Apache-2.0
"""The command `kvgpu` against a kvgpud with a session of a real program."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from framework.loopback import PROGRAMS, Loopback
from framework.waiting import eventually

Kvgpu = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kvgpu(host: Loopback) -> Kvgpu:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kvgpu.host.cli", *arguments],
            env=host.environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return call


@pytest.fixture
def session(host: Loopback, kvgpu: Kvgpu) -> Iterator[int]:
    """The number of the session of a program that computes."""
    process = host.start(PROGRAMS / "spin", "60")
    try:
        assert eventually(lambda: '"running"' in kvgpu("session", "list", "--json").stdout, 20), (
            host.logs()
        )
        yield json.loads(kvgpu("session", "list", "--json").stdout)[0]["session"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


def test_gpu_list(kvgpu: Kvgpu) -> None:
    (device,) = json.loads(kvgpu("gpu", "list", "--json").stdout)
    assert device["total_bytes"] > 0
    table = kvgpu("gpu", "list").stdout.splitlines()
    assert table[0].split()[0] == "gpu"
    assert device["name"] in table[1]
    assert device["pci_bus_id"] in table[1]


def test_host_status(kvgpu: Kvgpu, session: int) -> None:
    status = json.loads(kvgpu("host", "status", "--json").stdout)
    assert status["n_sessions"] == 1
    assert f"pid {status['pid']}" in kvgpu("host", "status").stdout


FAILS_ONCE = """
import ctypes, signal
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
def alloc(mib): return cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20))
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert [alloc(3), cuda.cuMemFree_v2(memory), alloc(1), alloc(1 << 30)] == [0, 0, 0, 2]
print("ready", flush=True)
signal.pause()
"""


def test_session_show_tells_of_calls_memory_and_the_last_error(
    host: Loopback, kvgpu: Kvgpu
) -> None:
    process = host.start(sys.executable, "-c", FAILS_ONCE)
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", host.logs()
        (listed,) = json.loads(kvgpu("session", "list", "--json").stdout)
        shown = json.loads(kvgpu("session", "show", str(listed["session"]), "--json").stdout)
        lines = kvgpu("session", "show", str(listed["session"])).stdout
    finally:
        process.terminate()
        process.communicate(timeout=20)
    activity = shown.pop("activity")
    assert shown == listed
    assert (activity["memory_bytes"], activity["peak_memory_bytes"]) == (1 << 20, 3 << 20)
    (device,) = activity["devices"]
    assert device["device"] == 0
    assert device["own_bytes"] == 1 << 20
    assert 0 < device["free_bytes"] < device["total_bytes"]
    calls = activity["calls"]
    assert (calls["cuMemAlloc_v2"], calls["cuMemFree_v2"]) == (3, 1)
    assert list(calls.values()) == sorted(calls.values(), reverse=True)
    assert activity["n_calls"] == sum(calls.values())
    last = activity["last_error"]
    assert activity["n_failed"] == 1
    assert (last["call"], last["result"]) == ("cuMemAlloc_v2", 2)
    assert last["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert listed["started_at_s"] - 1 < last["at_s"] < time.time() + 1
    assert "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)" in lines
    assert "1 MiB, at most 3 MiB" in lines


def test_session_show_and_logs(kvgpu: Kvgpu, session: int, host: Loopback) -> None:
    info = json.loads(kvgpu("session", "show", str(session), "--json").stdout)
    assert info["worker_pid"] == host.worker_pids()[0]
    lines = kvgpu("session", "show", str(session)).stdout.splitlines()
    assert ["worker_pid", str(info["worker_pid"])] in [line.split() for line in lines]
    logged = kvgpu("session", "logs", str(session))
    assert logged.returncode == 0
    killed = kvgpu("session", "kill", str(session), "--json")
    assert json.loads(killed.stdout) == {"killed": [session]}
    # The log stays when the session has gone.
    assert eventually(lambda: not host.worker_pids())
    ended = json.loads(kvgpu("session", "logs", str(session), "--json").stdout)
    assert ended["log"] == info["log"]
    assert "\n".join(ended["lines"]).startswith(logged.stdout.rstrip("\n"))


@pytest.mark.parametrize(("memory", "state"), [("1GiB", "ok"), ("100TiB", "failed")])
def test_dry_run_knows_how_much_memory_the_gpu_has(kvgpu: Kvgpu, memory: str, state: str) -> None:
    asked = ("vm", "xml", "new", f"--memory={memory}", "--connect=test:///default", "--dry-run")
    found = json.loads(kvgpu(*asked, "--json").stdout)
    assert [f["state"] for f in found if f["what"] == "GPU memory"] == [state]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("session", "show", "1"), "no session 1"),
        (("session", "logs", "1"), "no log of session 1"),
        (("session", "kill", "1"), "no session 1"),
        (("session", "kill"), "which session?"),
        (("vm", "show", "nobody"), "serves no VM 'nobody'"),
    ],
)
def test_what_is_not_there_is_said_with_what_to_do(
    kvgpu: Kvgpu, arguments: tuple[str, ...], message: str
) -> None:
    done = kvgpu(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert "(" in done.stderr
