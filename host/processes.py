# SPDX-License-Identifier: Apache-2.0
"""Processes that cannot be mistaken for later ones with the same number."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_START_TIME = 22 - 3  # proc(5): /proc/PID/stat, counted from field 3, the first behind the name


def open_holders(path: Path) -> list[int]:
    """Return pidfds of the processes that have the listening socket of that name."""
    sockets = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text().splitlines()]
    links = {f"socket:[{fields[6]}]" for fields in sockets if fields[7:] == [str(path)]}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if not _has_open(process, links):
            continue
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(int(process.name))
            if _has_open(process, links):  # still: so it is not another one of that number
                found.append(pidfd)
            else:
                os.close(pidfd)
    return found


def _has_open(process: Path, links: set[str]) -> bool:
    try:
        return any(os.readlink(fd) in links for fd in (process / "fd").iterdir())
    except OSError:  # it has ended, or belongs to someone else
        return False


def start_ticks(pid: int) -> int:
    """Return when process `pid` started, in clock ticks since boot; 0 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    # The name may hold anything; it ends at the last parenthesis.
    return int(stat.rpartition(")")[2].split()[_START_TIME])


def open_process(pid: int, started_ticks: int) -> int | None:
    """Return a pidfd of process `pid`, None if the one that started then has been reaped."""
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return None
    # Looked at only now: from here on the number stays the process's own.
    if start_ticks(pid) == started_ticks != 0:
        return pidfd
    os.close(pidfd)
    return None


def kill(pidfd: int) -> None:
    """End the process; one that was reaped meanwhile, by whoever was its parent, has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
