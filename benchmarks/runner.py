# SPDX-License-Identifier: Apache-2.0
"""Measure one subject: pairs of native and remoted figures, in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from framework.first_result import is_full
from framework.waiting import eventually

from benchmarks import host_costs
from benchmarks.catalog import Subject
from benchmarks.figures import Figure
from benchmarks.processors import Processors, keep_on
from benchmarks.served import BenchError, Served
from benchmarks.sides import N_WAITING, Sides, command_of, environment_of

Figures = dict[str, Figure]
MeasureSides = dict[str, Callable[[int], Figures]]  # of the number of the pair
START_S = 240.0  # torch.compile's first run is the longest
QUIET_S = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """What one round gave; nothing natively where the subject runs remoted only."""

    native: Figures
    remoted: Figures


@dataclass(frozen=True)
class Effort:
    """How much of each measurement is made (1: all)."""

    share: float
    whole: frozenset[str] = frozenset()  # subjects that are measured at full length all the same

    def of(self, subject: Subject) -> float:
        return 1.0 if subject.name in self.whole else self.share

    def __str__(self) -> str:
        whole = f"; whole: {', '.join(sorted(self.whole))}" if self.whole else ""
        return f"{self.share:g} of full length{whole}"


class Runner:
    """Knows the sides, how much to measure, and when to stop."""

    def __init__(self, sides: Sides, effort: Effort, pairs: int, end_s: float, logs: Path) -> None:
        self._sides = sides
        self._effort = effort
        self._pairs = pairs
        self._end_s = end_s
        self._logs = logs
        self.processors = Processors()

    def pairs(self, subject: Subject, rows: list[str]) -> Iterator[Pair]:
        """Yield each pair as soon as it is there; BenchError where no more are to be had."""
        with ExitStack() as stack:
            if subject.kind == "served":
                sides = self._served(subject, stack)
            elif subject.kind == "start":
                sides = self._start(subject, rows)
            else:
                sides = self._cost(subject, stack)
            yield from self._rounds(sides, min(self._pairs, subject.pairs or self._pairs))

    def _rounds(self, of: MeasureSides, n: int) -> Iterator[Pair]:
        names = list(of)
        for number in range(n):
            # Who is first changes, so that what drifts falls on both.
            order = names if number % 2 == 0 else names[::-1]
            found = {name: of[name](number) for name in order}
            native = found.pop("native", {})
            (remoted,) = found.values()
            yield Pair(native, remoted)

    def _left_s(self, limit_s: float) -> float:
        left_s = min(limit_s, self._end_s - time.monotonic())
        if left_s <= 0:
            raise BenchError("the time for all is over")
        return left_s

    def _process(self, subject: Subject, name: str, *options: str) -> Served:
        side = self._sides.get(name)
        command = [*command_of(subject.command, self._effort.of(subject)), *options]
        log = self._logs / f"{subject.name}.{name}.log"
        return Served(command, environment_of(subject, side), log)

    def _open(self, subject: Subject, name: str, stack: ExitStack) -> Served:
        process = self._process(subject, name, "--served")
        stack.callback(process.close)
        return process

    def _served(self, subject: Subject, stack: ExitStack) -> MeasureSides:
        processes = {name: self._open(subject, name, stack) for name in subject.sides}
        # One after the other: a library that chooses by timing is not to be disturbed.
        with self._killing(processes):
            for process in processes.values():
                process.ask("warm", self._left_s(START_S))

        def measure(name: str, number: int) -> Figures:
            process = processes[name]
            self._move(subject, name, number, process.pid)
            with self._killing(processes):
                return process.ask("go", self._left_s(subject.limit_s))

        return {name: partial(measure, name) for name in processes}

    def _move(self, subject: Subject, name: str, number: int, pid: int) -> None:
        """Let this process, and its worker, run where it is fast just now."""
        side = self._sides.get(name)
        keep_on(self.processors.choose(number, subject.processors), [pid, *side.workers()])

    @contextmanager
    def _killing(self, processes: dict[str, Served]) -> Iterator[None]:
        """Who does not answer will not end by itself either."""
        try:
            yield
        except BenchError as error:
            for process in processes.values():
                process.kill()
            raise BenchError(str(error)) from None

    def _start(self, subject: Subject, rows: list[str]) -> MeasureSides:
        return {name: partial(self._start_once, subject, name, rows) for name in subject.sides}

    def _start_once(self, subject: Subject, name: str, rows: list[str], number: int) -> Figures:
        host = self._sides.get(name).host
        if host is not None:  # the driver is busy while an earlier session's context goes
            eventually(
                lambda: not host.worker_pids() and is_full(host, N_WAITING, or_more=True), QUIET_S
            )
        limit_s = self._left_s(subject.limit_s)
        self._move(subject, name, number, os.getpid())  # whose processors a child has
        begin_s = time.monotonic()
        try:
            process = self._process(subject, name)
        finally:
            keep_on(self.processors.all, [os.getpid()])
        try:
            process.read_line(begin_s + limit_s)
            if subject.until == "end":
                process.wait(limit_s)
            took_s = time.monotonic() - begin_s
        except BenchError:
            process.kill()
            raise
        process.close()
        return dict.fromkeys(rows, Figure(1000 * took_s, "ms"))

    def _cost(self, subject: Subject, stack: ExitStack) -> MeasureSides:
        for name in subject.sides:  # nothing is timed here, and many are to run at once
            keep_on(self.processors.all, self._sides.get(name).workers())
        if subject.sides == ("remoted",):
            return {"remoted": lambda _number: self._sessions(subject)}
        processes = {name: self._open(subject, name, stack) for name in subject.sides}
        for process in processes.values():
            process.ask("warm", self._left_s(START_S))

        def measure(name: str, _number: int) -> Figures:
            with self._killing(processes):
                limit_s = self._left_s(subject.limit_s)
                side = self._sides.get(name)
                return host_costs.session(processes[name], side, self._effort.of(subject), limit_s)

        return {name: partial(measure, name) for name in subject.sides}

    def _sessions(self, subject: Subject) -> Figures:
        log = self._logs / f"{subject.name}.log"
        limit_s = self._left_s(subject.limit_s)
        side = self._sides.get("remoted")
        n = host_costs.sessions_at_once(
            side, subject.command, log, self._effort.of(subject), limit_s
        )
        return {"sessions_at_once": n}
