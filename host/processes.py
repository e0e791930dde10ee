# SPDX-License-Identifier: Apache-2.0
"""Processes that cannot be mistaken for later ones with the same number."""

from __future__ import annotations

import os
from pathlib import Path

_START_TIME = 22 - 3  # proc(5): /proc/PID/stat, counted from field 3, the first behind the name


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
