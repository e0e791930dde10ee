# SPDX-License-Identifier: Apache-2.0
"""What a process does while nobody wants anything of it: its processor time and its wake-ups."""

from __future__ import annotations

import re
import time
from pathlib import Path

# A worker beats once a second; one that polls for its kick wakes ten times as often.
MAX_WAKEUPS_PER_S = 3.0


class Idle:
    """Two readings of a process: this is the first one."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begin_s = time.monotonic()
        self._begin = self._read()

    def check(self) -> str:
        """Fail if the process has used the processor since; return what was seen."""
        ticks, wakeups = (end - begin for end, begin in zip(self._read(), self._begin, strict=True))
        per_s = wakeups / (time.monotonic() - self._begin_s)
        seen = f"{ticks} ticks of processor time, {per_s:.1f} wake-ups per second"
        assert ticks <= 1, seen  # the kernel counts who runs when its clock ticks
        assert per_s < MAX_WAKEUPS_PER_S, seen
        return seen

    def _read(self) -> tuple[int, int]:
        """Return clock ticks and voluntary switches, of all threads."""
        process = Path("/proc") / str(self._pid)
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        n_switches = 0
        for status in process.glob("task/*/status"):
            found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.M)
            assert found
            n_switches += int(found[1])
        return int(fields[11]) + int(fields[12]), n_switches
