# SPDX-License-Identifier: Apache-2.0
"""Programs that do wrong: what they see, who else notices, and whether the next one works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from framework.life import sessions, start_steady
from framework.loopback import BUILD, ROOT, Loopback
from framework.waiting import eventually

PROGRAM = ROOT / "tests/loopback/fault_programs.py"
LIMIT_S = 60
WORKS = ["works [5, 0]"]
NAMES = (
    "illegal_address", "misaligned", "trap", "assertion", "stack_overflow", "out_of_memory",
    "double_free", "after_free",
)  # fmt: skip


def _lines(name: str, environment: dict[str, str]) -> list[str]:
    """What a program says, and its exit status; not what it says differently each time."""
    done = subprocess.run(
        [sys.executable, PROGRAM, name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    # A thread each; the driver's order is its own.
    lines += sorted(line for line in done.stderr.splitlines() if "] Assertion `" in line)
    return [*lines, *([f"exit status {done.returncode}", done.stderr] if done.returncode else [])]


def native(driver: str, name: str) -> list[str]:
    libraries = (
        {"LD_LIBRARY_PATH": str(BUILD / "host/software_gpu")} if driver == "software" else {}
    )
    return _lines(name, os.environ | libraries)


@contextmanager
def guest(host: Loopback) -> Iterator[dict[str, str]]:
    """One guest: the environment of its programs."""
    with host.open_run() as socket:
        libraries = host.environment["KVGPU_LIBCUDA_DIR"]
        yield host.environment | {"KVGPU_SOCKET": socket, "LD_LIBRARY_PATH": libraries}


def check_fault(host: Loopback, driver: str, name: str) -> list[str]:
    """The fault natively and in a guest, then the next process of that guest; the differences."""
    mine = native(driver, name)
    with guest(host) as environment:
        yours = _lines(name, environment)
        after = _lines("works", environment)
    if name == "assertion" and not any("] Assertion `" in line for line in mine):
        return [f"no assertion is said to have failed natively: {mine}"]
    differing = [f"{a}, remoted {b}" for a, b in zip(mine, yours, strict=False) if a != b]
    if len(mine) != len(yours):
        differing.append(f"{len(mine)} lines natively, {len(yours)} remoted: {yours[-2:]}")
    if after != WORKS:
        differing.append(f"the next process: {after}")
    return differing


def check_infinite(host: Loopback) -> None:
    """A kernel without an end is killed with its program, and the next process works."""
    with guest(host) as environment:
        before = set(host.worker_pids())
        process = subprocess.Popen(
            [sys.executable, PROGRAM, "infinite"], env=environment, stdout=subprocess.PIPE
        )
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        (worker,) = set(host.worker_pids()) - before
        time.sleep(1)  # so that it runs
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)
        assert eventually(lambda: worker not in host.worker_pids(), 20)
        assert _lines("works", environment) == WORKS


@contextmanager
def neighbour(host: Loopback, n_seconds: float) -> Iterator[None]:
    """Another session, which computes and checks all the time; it must not notice anything."""
    process = start_steady(host, n_seconds)
    try:
        yield
    except BaseException:
        process.kill()
        process.communicate()
        raise
    output, errors = process.communicate(timeout=n_seconds + 60)
    assert process.returncode == 0, output + errors + host.logs()
    assert output.splitlines()[-1] == "steady: all results correct"
    found = re.search(r"(\d+) rounds, the longest took (\d+) ms", output)
    assert found, output
    assert eventually(lambda: not sessions(host))
    print(f"figure: a neighbour's {found[1]} rounds were right, the longest took {found[2]} ms")
