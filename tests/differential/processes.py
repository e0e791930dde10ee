# SPDX-License-Identifier: Apache-2.0
"""Processes of error_calls.py: each makes calls until one leaves it unsound, the next goes on."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from differential.differences import Results
from differential.rows import GOOD, Row

CALLS = Path(__file__).resolve().with_name("error_calls.py")
START_LIMIT_S = 60.0  # up to the end of the first call, which starts the driver
CALL_LIMIT_S = 30.0  # on a loaded machine, too


class Caller:
    """A process that makes calls, and how far it has come."""

    def __init__(self, command: list[str], environment: Mapping[str, str], rows: list[Row]) -> None:
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=environment["TMPDIR"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it has children
        )
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(rows).encode())
        self.process.stdin.close()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.text = b""

    def line(self, limit_s: float) -> str | None:
        """The next line; None at the end. TimeoutError when there is none in time."""
        assert self.process.stdout
        end_s = time.monotonic() + limit_s
        while b"\n" not in self.text:
            if not self.selector.select(max(0.0, end_s - time.monotonic())):
                raise TimeoutError
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self.text += data
        line, _, self.text = self.text.partition(b"\n")
        return line.decode()

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.selector.close()
        assert self.process.stdout
        self.process.stdout.close()


def run_some(environment: Mapping[str, str], rows: list[Row], end_s: float) -> list[str]:
    """Start a process for these; what the calls gave that it came to until then."""
    caller = Caller([sys.executable, "-P", str(CALLS)], environment, rows)
    said: list[str] = []
    limit_s, verdict = START_LIMIT_S, "crashes"
    begun = False
    try:
        while (line := caller.line(min(limit_s, end_s - time.monotonic()))) is not None:
            _, *outcome = line.split("\t")
            begun = not outcome
            if outcome:
                said.append(outcome[0])
                limit_s = CALL_LIMIT_S
    except TimeoutError:
        if time.monotonic() >= end_s:
            return said
        verdict = "hangs"
    finally:
        caller.end()
    if begun or not said:
        said.append(verdict)
    return said


class Run:
    """Batches of rows with one driver, several processes at once; `file` has what is known."""

    def __init__(self, environment: Mapping[str, str], file: Path, end_s: float) -> None:
        self.environment, self.file, self.end_s = environment, file, end_s
        self.begun_s = time.monotonic()
        self.results: Results = {}
        self.n_processes = 0
        self.mutex = threading.Lock()

    def all(self, todo: list[list[Row]], n_at_once: int) -> Results:
        """Make the calls of all batches, as far as there is time."""
        # Some of the calls write files.
        with ThreadPoolExecutor(n_at_once) as pool, tempfile.TemporaryDirectory() as folder:
            environment = {**self.environment, "TMPDIR": folder}
            list(pool.map(lambda rows: self.batch(environment, rows), todo))
        return self.results

    def batch(self, environment: Mapping[str, str], rows: list[Row]) -> None:
        """As many processes one after another as these rows end."""
        said: list[str] = []
        while len(said) < len(rows) and time.monotonic() < self.end_s:
            said += run_some(environment, rows[len(said) :], self.end_s)
            with self.mutex:
                self.n_processes += 1
        with self.mutex:
            for (name, what), outcome in zip(rows, said, strict=False):
                self.results.setdefault(name, {})[what] = outcome
            self.file.write_text(text_of(self.results))

    def figures(self) -> str:
        n = sum(len(rows) for rows in self.results.values())
        n_good = sum(rows.get(GOOD, "").split(" ")[0] == "0" for rows in self.results.values())
        return (
            f"{n} calls of {len(self.results)} entry points, the good one of {n_good} works;"
            f" {self.n_processes} processes, {time.monotonic() - self.begun_s:.0f} s"
        )


def text_of(results: Results) -> str:
    lines = [
        "\t".join([name, *(f"{what}: {outcome}" for what, outcome in sorted(rows.items()))])
        for name, rows in sorted(results.items())
    ]
    return "\n".join(lines) + "\n"


def read(path: Path) -> Results:
    """What a run has written."""
    found: Results = {}
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            name, *rows = line.split("\t")
            found[name] = {what: said for what, _, said in (row.partition(": ") for row in rows)}
    return found


def merged(*parts: Results) -> Results:
    """Of several runs the answers; a later one's are those that count."""
    found: Results = {}
    for part in parts:
        for name, rows in part.items():
            found[name] = found.get(name, {}) | rows
    return found
