# SPDX-License-Identifier: Apache-2.0
"""kvgpud stopped, killed and started again under programs that compute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from framework.life import checked_loop, sessions, start_steady
from framework.loopback import PROGRAMS, Loopback, loopback
from framework.waiting import eventually

LOOP_S = float(os.environ.get("KVGPU_LOOP_S", "15"))  # of the checked loop


@pytest.fixture
def host() -> Iterator[Loopback]:
    with loopback() as running:
        yield running


def test_checked_loop_survives_kill_9_of_kvgpud(host: Loopback) -> None:
    print(checked_loop(host, LOOP_S))


def test_stop_of_kvgpud_leaves_sessions_and_the_next_one_ends_them(host: Loopback) -> None:
    process = start_steady(host, 60)
    (worker,) = host.worker_pids()
    host.stop_kvgpud(signal.SIGTERM)
    time.sleep(0.5)
    assert host.worker_pids() == [worker]
    host.start_kvgpud()
    kill = [sys.executable, "-m", "kvgpu.host.cli", "session", "kill", "--all"]
    subprocess.run(kill, env=host.environment, check=True, timeout=30)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 1, output
    assert "the session has ended: its worker has ended" in errors
    assert not host.worker_pids()


def test_program_that_ended_meanwhile_has_no_session_afterwards(host: Loopback) -> None:
    process = start_steady(host, 60)
    client = int(sessions(host)[0]["pid"])
    host.stop_kvgpud(signal.SIGKILL)
    os.kill(client, signal.SIGKILL)
    process.communicate(timeout=20)
    assert len(host.worker_pids()) == 1, "nobody knows yet"
    host.start_kvgpud()
    assert eventually(lambda: not host.worker_pids() and not sessions(host))


def test_worker_that_is_killed_without_kvgpud_is_an_error_at_once(host: Loopback) -> None:
    process = start_steady(host, 60)
    (worker,) = host.worker_pids()
    host.stop_kvgpud(signal.SIGKILL)
    time.sleep(0.2)
    os.kill(worker, signal.SIGKILL)
    begin_s = time.monotonic()
    output, errors = process.communicate(timeout=20)
    assert time.monotonic() - begin_s < 2
    assert process.returncode == 1, output
    assert "the session has ended: its worker has ended" in errors
    host.start_kvgpud()
    assert sessions(host) == []


def test_program_of_the_same_run_opens_a_session_after_the_restart(host: Loopback) -> None:
    mark = host.runtime_dir / "restarted"
    wait = f"while [ ! -e {mark} ]; do sleep 0.1; done"
    script = f"{PROGRAMS}/steady 1 && {wait} && {PROGRAMS}/demo"
    process = host.start("/bin/sh", "-c", script)
    assert process.stdout
    process.stdout.readline()
    host.stop_kvgpud(signal.SIGKILL)
    host.start_kvgpud()
    mark.touch()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors + host.logs()
    assert "demo: all results correct" in output


def test_kvgpud_killed_lets_sessions_go_on_and_refuses_new_ones(host: Loopback) -> None:
    mark = host.runtime_dir / "killed"
    wait = f"while [ ! -e {mark} ]; do sleep 0.1; done"
    init = "import ctypes; print('cuInit', ctypes.CDLL('libcuda.so.1').cuInit(0))"
    script = f'{PROGRAMS}/steady 8 & {wait}; {sys.executable} -c "{init}"; wait'
    process = host.start("/bin/sh", "-c", script)
    assert process.stdout
    assert process.stdout.readline() == "steady: begins\n"
    host.stop_kvgpud(signal.SIGKILL)
    mark.touch()
    output, errors = process.communicate(timeout=60)
    assert "cuInit 100" in output
    assert "cannot reach" in errors
    assert "steady: all results correct" in output


PINNED = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print("ready", flush=True)
sys.stdin.readline()
begin_s = time.monotonic()
result = cuda.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(100 << 20), 0)
print("result", result, "waited", time.monotonic() - begin_s > 0.5, flush=True)
sys.stdin.readline()
"""


def test_pinned_memory_asked_for_without_kvgpud_comes_when_it_is_back(host: Loopback) -> None:
    process = subprocess.Popen(
        host.command(sys.executable, "-c", PINNED),
        env=host.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    host.stop_kvgpud(signal.SIGKILL)
    process.stdin.write("\n")
    process.stdin.flush()
    time.sleep(1)
    host.start_kvgpud()
    assert eventually(lambda: sessions(host)[0]["pinned_bytes"] >= 100 << 20)
    assert process.stdout.readline() == "result 0 waited True\n"
    process.communicate("\n", timeout=20)
