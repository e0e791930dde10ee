# SPDX-License-Identifier: Apache-2.0
"""Which processors are at full speed just now, and programs that are to stay on these.

A virtual machine's processor may be shared with other machines: then all that runs there takes some
twice as long, for a second or two, and nothing in this machine says so. What a driver's call takes
of the GPU does not change, so that ratios are others there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

AT_FULL_SPEED = 0.9  # of the fastest one
LOOKS = 3
STEPS = 20_000  # a quarter to half a millisecond


def seconds_on(processor: int) -> float:
    """Return how long a loop takes there; the calling thread goes back to where it may be."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        return min(_loop_s() for _ in range(LOOKS))
    finally:
        os.sched_setaffinity(0, allowed)


def _loop_s() -> float:
    begin_s = time.perf_counter()
    for _ in range(STEPS):
        pass
    return time.perf_counter() - begin_s


def at_full_speed(times_s: Mapping[int, float], at_least: int) -> list[int]:
    """Return those within a tenth of the fastest, or the `at_least` fastest ones, by number."""
    fastest_first = sorted(times_s, key=lambda one: times_s[one])
    limit_s = times_s[fastest_first[0]] / AT_FULL_SPEED
    n_fast = sum(took_s <= limit_s for took_s in times_s.values())
    return sorted(fastest_first[: max(n_fast, at_least)])


def keep_on(processors: Iterable[int], pids: Iterable[int]) -> None:
    """Let all threads of these processes, and those that they start, run there only."""
    chosen = set(processors)
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), chosen)


class Processors:
    """Those that this process may use."""

    def __init__(self, seconds: Callable[[int], float] = seconds_on) -> None:
        self.all = sorted(os.sched_getaffinity(0))
        self._seconds = seconds
        self._n_fast: list[int] = []  # at each look

    def choose(self, number: int, n: int) -> list[int]:
        """Return `n` that are at full speed now; with each pair's number others, if there are."""
        times_s = {one: self._seconds(one) for one in self.all}
        self._n_fast.append(len(at_full_speed(times_s, 0)))
        fast = at_full_speed(times_s, n)
        first = number % len(fast)
        return sorted((fast[first:] + fast[:first])[:n])

    def __str__(self) -> str:
        """Say how many were at full speed."""
        found = sorted(self._n_fast) or [0]
        middle = found[len(found) // 2]
        return f"{found[0]} to {found[-1]} of {len(self.all)} at full speed, mostly {middle}"
