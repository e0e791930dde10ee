# SPDX-License-Identifier: Apache-2.0
"""Unmodified CUDA programs, and what surrounds them: processes, workers, jails, ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from framework.loopback import LOOPBACK, PROGRAMS, Loopback, case_filter
from framework.waiting import eventually

LONG = case_filter("threads: 16 threads launch, copy and wait together")


def sessions(host: Loopback) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "kvgpu.host.cli", "session", "list", "--json"]
    done = subprocess.run(
        command, env=host.environment, capture_output=True, text=True, check=True, timeout=30
    )
    listed: list[dict[str, object]] = json.loads(done.stdout)
    return listed


def test_vector_add_and_the_rest_of_the_demo(host: Loopback) -> None:
    output = host.check(PROGRAMS / "demo")
    assert "vector add: ok" in output
    assert output.splitlines()[-1] == "demo: all results correct"


@pytest.mark.parametrize(
    "program", ["capture", "errors", "hostfunc", "memory", "printf", "vector_add"]
)
def test_program_finds_all_results_correct(host: Loopback, program: str) -> None:
    assert host.check(PROGRAMS / program).splitlines()[-1] == f"{program}: all results correct"


def test_printf_of_the_device_stands_between_the_host_s_lines(host: Loopback) -> None:
    lines = host.check(PROGRAMS / "printf").splitlines()
    begin, end = lines.index("host: before round 0"), lines.index("host: after round 0")
    printed = lines[begin + 1 : end]
    assert printed
    assert all(line.startswith("device: round 0 ") for line in printed)


def test_run_returns_the_program_s_status(host: Loopback) -> None:
    assert host.run("/bin/sh", "-c", "exit 7").returncode == 7


def test_two_processes_have_a_worker_each(host: Loopback) -> None:
    spinning = [host.start(PROGRAMS / "spin", "20") for _ in range(2)]
    try:
        assert eventually(lambda: len(host.worker_pids()) == 2, 20)
        listed = sessions(host)
        assert len({s["worker_pid"] for s in listed}) == 2
    finally:
        for process in spinning:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
    assert eventually(lambda: not host.worker_pids(), 5)


def test_worker_killed_gives_a_defined_error_and_no_hang(host: Loopback) -> None:
    process = host.start(PROGRAMS / "spin", "60")
    assert eventually(lambda: len(host.worker_pids()) == 1, 20)
    time.sleep(0.5)
    os.kill(host.worker_pids()[0], signal.SIGKILL)
    output, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "the session has ended" in errors, (output, errors)
    assert eventually(lambda: not sessions(host), 5)


def test_killed_program_frees_its_session(host: Loopback) -> None:
    process = host.start(PROGRAMS / "spin", "60")
    assert eventually(lambda: len(sessions(host)) == 1, 20)
    program = int(str(sessions(host)[0]["pid"]))
    os.kill(program, signal.SIGKILL)
    assert eventually(lambda: not sessions(host) and not host.worker_pids(), 2)
    process.communicate(timeout=20)


def test_refused_entry_point_says_so_once(host: Loopback) -> None:
    script = (
        "import ctypes\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "results = [cuda.cuGLInit() for _ in range(3)]\n"
        "assert results == [801] * 3, results\n"
    )
    done = host.run(sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cuGLInit is refused") == 1


def test_fork_and_threads_under_load(host: Loopback) -> None:
    running = [host.start(LOOPBACK / "driver_cases", LONG) for _ in range(4)]
    for process in running:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, output + errors
