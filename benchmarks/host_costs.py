# SPDX-License-Identifier: Apache-2.0
"""What sessions cost the host: processor time, memory, and many at once."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path

from framework.loopback import Loopback
from framework.waiting import eventually

from benchmarks.figures import Figure
from benchmarks.served import BenchError, Served
from benchmarks.sides import Side, command_of

IDLE_S = 10.0
SETTLE_S = 0.5  # who spins after work has gone to sleep by then
N_SESSIONS = 64
START_S = 240.0
END_S = 60.0


def processor_s(pid: int) -> float:
    """Return the processor time that the threads of a process have had."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if not threads:
        raise BenchError(f"no /proc/{pid}/task/*/schedstat: it has ended, or the kernel keeps none")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def resident_mib(pid: int) -> float:
    found = re.search(r"^VmRSS:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise BenchError(f"process {pid} has ended")
    return int(found[1]) / 1024


def the_worker(host: Loopback) -> int:
    """Return the worker of the only session."""
    workers = host.worker_pids()
    if len(workers) != 1:
        raise BenchError(f"{len(workers)} workers where one was expected")
    return workers[0]


def session(served: Served, side: Side, effort: float, limit_s: float) -> dict[str, Figure]:
    """Measure one program that launches for a while and then does nothing, and its worker."""
    if side.host is None:  # the program's own launching and waiting is no cost of the host's
        served.ask("go", limit_s)
        return {"resident": Figure(resident_mib(served.pid), "MiB")}
    worker = the_worker(side.host)
    begin_s, used_s = time.monotonic(), processor_s(worker)
    served.ask("go", limit_s)
    busy = (processor_s(worker) - used_s) / (time.monotonic() - begin_s)
    time.sleep(SETTLE_S)
    processes = {worker, served.pid}
    begin_s, used_s = time.monotonic(), sum(map(processor_s, processes))
    time.sleep(max(0.2, IDLE_S * effort))
    idle = (sum(map(processor_s, processes)) - used_s) / (time.monotonic() - begin_s)
    return {
        "busy_session": Figure(busy, "cores"),
        "idle_session": Figure(idle, "cores"),
        "resident": Figure(resident_mib(worker), "MiB"),
    }


def sessions_at_once(side: Side, command: str, log: Path, effort: float, limit_s: float) -> Figure:
    """Start many programs, then let all compute at once; how many got each result right."""
    with ExitStack() as stack:
        programs = []
        for _ in range(N_SESSIONS):
            programs.append(
                Served([*command_of(command, effort), "--served"], side.environment, log)
            )
            stack.callback(programs[-1].close)
        for program in programs:
            program.ask("warm", START_S)
        assert side.host is not None
        alive = len(side.host.worker_pids())
        if alive < N_SESSIONS:
            raise BenchError(f"{alive} sessions are open")
        for program in programs:
            program.tell("go")
        right = [program.answer(limit_s)["right"].value == 1 for program in programs]
    eventually(lambda: not side.host or not side.host.worker_pids(), END_S)
    return Figure(float(sum(right)), "sessions")
