# SPDX-License-Identifier: Apache-2.0
"""A program that measures when it is told to: both sides are started once, then take turns.

It reads lines: `warm` first, then `go` for each measurement. It answers with figures and `end`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Figure, parse

END_S = 30


class BenchError(Exception):
    """A measurement that was not to be had, and why."""


class Served:
    """One such program."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._unread = b""
        with log.open("ab") as errors:
            try:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # so that what it starts ends with it
                )
            except OSError as error:
                raise BenchError(f"{command[0]}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, word: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says why

    def answer(self, limit_s: float) -> dict[str, Figure]:
        """Return the figures up to `end`."""
        deadline_s = time.monotonic() + limit_s
        lines: list[str] = []
        while (line := self.read_line(deadline_s)) != "end":
            lines.append(line)
        return parse(lines)

    def ask(self, word: str, limit_s: float) -> dict[str, Figure]:
        self.tell(word)
        return self.answer(limit_s)

    def read_line(self, deadline_s: float) -> str:
        assert self._process.stdout
        output = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([output], [], [], left_s)[0]:
                raise BenchError("no answer in time")
            data = os.read(output, 1 << 16)
            if not data:
                raise BenchError(f"ended with status {self._process.wait()}: {self._last_words()}")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode(errors="replace")

    def wait(self, limit_s: float) -> int:
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise BenchError("no end in time") from None

    def close(self) -> None:
        """End it: by the end of its input, else by force."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"
