# SPDX-License-Identifier: Apache-2.0
"""Unmodified CUDA programs, and what surrounds them: processes, workers, jails, ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from framework.loopback import LOOPBACK, PROGRAMS, Loopback, case_filter

LONG = case_filter("threads: 16 threads launch, copy and wait together")


def eventually(what: Callable[[], bool], limit_s: float = 5) -> bool:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if what():
            return True
        time.sleep(0.02)
    return False


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
    assert eventually(lambda: not host.worker_pids())


@pytest.fixture
def worker(host: Loopback) -> object:
    """The pid of the worker of a program that computes."""
    process = host.start(PROGRAMS / "spin", "60")
    assert eventually(lambda: len(host.worker_pids()) == 1, 20), host.logs()
    yield host.worker_pids()[0]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert eventually(lambda: not host.worker_pids())


def status_fields(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.mark.skipif(os.geteuid() != 0, reason="a jail needs root to make it")
def test_jail_uid_capabilities_new_privileges_namespaces_descriptors_device_nodes(
    worker: int,
) -> None:
    fields = status_fields(worker)
    assert "0" not in fields["Uid"].split(), "own uid"
    assert "0" not in fields["Gid"].split()
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[kind], 16) == 0, kind
    assert fields["NoNewPrivs"] == "1"
    for namespace in ("net", "mnt", "ipc"):
        theirs = os.readlink(f"/proc/{worker}/ns/{namespace}")
        assert theirs != os.readlink(f"/proc/self/ns/{namespace}"), namespace
    root = Path(f"/proc/{worker}/root")
    assert not (root / "etc/passwd").exists()
    assert not (root / "home").exists()
    devices = sorted(path.name for path in (root / "dev").iterdir())
    assert [d for d in devices if not d.startswith("nvidia")] == ["null", "urandom", "zero"]
    mounts = Path(f"/proc/{worker}/mounts").read_text().splitlines()
    assert next(line for line in mounts if line.split()[1] == "/").split()[3].startswith("ro")
    open_files = {
        int(path.name): os.readlink(path) for path in Path(f"/proc/{worker}/fd").iterdir()
    }
    assert set(range(7)) <= set(open_files)  # PROTOCOL.md §5
    others = [target for fd, target in open_files.items() if fd > 6]
    assert all(t.startswith(("/dev/nvidia", "anon_inode:", "/proc/")) for t in others), others


def test_worker_killed_gives_a_defined_error_and_no_hang(host: Loopback) -> None:
    process = host.start(PROGRAMS / "spin", "60")
    assert eventually(lambda: len(host.worker_pids()) == 1, 20)
    time.sleep(0.5)
    os.kill(host.worker_pids()[0], signal.SIGKILL)
    output, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "the session has ended" in errors, (output, errors)
    assert eventually(lambda: not sessions(host))


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
        "results = [cuda.cuArrayCreate_v2(None, None) for _ in range(3)]\n"
        "assert results == [801] * 3, results\n"
    )
    done = host.run(sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cuArrayCreate_v2 is refused") == 1


def test_fork_and_threads_under_load(host: Loopback) -> None:
    running = [host.start(LOOPBACK / "driver_cases", LONG) for _ in range(4)]
    for process in running:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, output + errors
