# SPDX-License-Identifier: Apache-2.0
"""kvgpud killed and started again under a program that checks its results."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from typing import Any

from framework.loopback import PROGRAMS, Loopback
from framework.waiting import eventually

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import SessionListRequest

LONGEST_ROUND_MS = 1000
_RESTART_S = 10  # a kill and a restart take no longer, however busy the machine is


def sessions(host: Loopback) -> list[dict[str, Any]]:
    with ApiClient(host.runtime_dir) as api:
        listed: list[dict[str, Any]] = api.ask(SessionListRequest())["sessions"]
    return listed


def start_steady(host: Loopback, n_seconds: float, **variables: str) -> subprocess.Popen[str]:
    """Start the program that computes for so long; return when it has begun."""
    process = host.start(PROGRAMS / "steady", str(n_seconds), **variables)
    assert process.stdout
    assert process.stdout.readline() == "steady: begins\n", host.logs()
    return process


def checked_loop(host: Loopback, n_seconds: float) -> str:
    """Kill kvgpud with -9 again and again for `n_seconds`; return the figure for the ledger."""
    process = start_steady(host, n_seconds)
    (worker,) = host.worker_pids()
    (before,) = sessions(host)
    assert before["worker_pid"] == worker
    end_s = time.monotonic() + n_seconds
    n_kills = 0
    while n_kills == 0 or time.monotonic() + _RESTART_S < end_s:
        host.stop_kvgpud(signal.SIGKILL)
        n_kills += 1
        time.sleep(1)
        host.start_kvgpud()
        assert sessions(host) == [before], "the session goes on, with the same worker"
        time.sleep(1)
    output, errors = process.communicate(timeout=n_seconds + 30)
    assert process.returncode == 0, output + errors + host.logs()
    assert output.splitlines()[-1] == "steady: all results correct"
    found = re.search(r"(\d+) rounds, the longest took (\d+) ms", output)
    assert found, output
    assert int(found[2]) <= LONGEST_ROUND_MS, output
    assert eventually(lambda: not sessions(host) and not host.worker_pids())
    return (
        f"figure: kvgpud killed {n_kills} times in {n_seconds:g} s, same worker, "
        f"{found[1]} rounds right, longest {found[2]} ms"
    )
