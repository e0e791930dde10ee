# SPDX-License-Identifier: Apache-2.0
"""The two executors that a program is given to: native, and under `kvgpu run`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from framework.loopback import BUILD, LOOPBACK, Loopback

EXECUTOR = Path(__file__).with_name("executor.py")
LIMIT_S = 40  # of one program, and of a start on a GPU that many want a context of
END_LIMIT_S = 20
Call = list[Any]
Answers = list[list[Any]]


class Side:
    """An executor, started anew where it has ended."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None
        self._limit = threading.Timer(0, lambda: None)
        self._said = tempfile.TemporaryFile()
        self._begun_s = 0.0
        self.seconds = 0.0  # that programs took
        self.start_seconds = 0.0  # starts, and the program after each
        self.n_starts = 0
        self._is_new = False
        self.lingers = False  # it has once not ended when it was asked to

    def begin(self, program: list[Call]) -> None:
        """Give it a program; end() waits for the answers."""
        self._begun_s = time.monotonic()
        self._is_new = self._process is None
        if self._process is None:
            self.n_starts += 1
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                start_new_session=True,  # `kvgpu run` and its program end together
            )
        process = self._process
        self._limit = threading.Timer(LIMIT_S, self._kill, [process])
        self._limit.start()
        assert process.stdin
        with contextlib.suppress(BrokenPipeError):  # end() finds out
            process.stdin.write(json.dumps(program) + "\n")
            process.stdin.flush()

    def end(self) -> Answers | str:
        """What each call gave, or how the process has ended."""
        process = self._process
        assert process
        assert process.stdout
        line = process.stdout.readline()
        is_late = not self._limit.is_alive()
        self._limit.cancel()
        taken_s = time.monotonic() - self._begun_s
        if self._is_new:
            self.start_seconds += taken_s
        else:
            self.seconds += taken_s
        if not line:
            self._kill(process)
            status = process.wait()
            self._process = None
            return f"hangs: {self.said()}" if is_late else f"ends with {status}: {self.said()}"
        answers: Answers = json.loads(line)
        return answers

    def said(self) -> str:
        """The end of what it has written to stderr."""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - 2000))
        return self._said.read().decode(errors="replace")

    def close(self) -> None:
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.lingers = True
            self._kill(self._process)
            self._process.communicate()
        except BrokenPipeError:
            self._kill(self._process)
            self._process.wait()
        self._process = None

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Sides:
    """Both of them; each program begins on both at the same time."""

    def __init__(self, host: Loopback, driver: str) -> None:
        environment = {**os.environ, "KERNELS_PTX": str(LOOPBACK / "kernels.ptx")}
        executor = [sys.executable, "-P", str(EXECUTOR)]
        mine = dict(environment)
        if driver == "software":
            mine["LD_LIBRARY_PATH"] = str(BUILD / "host/software_gpu")
        self.native = Side(executor, mine)
        self.remoted = Side(host.command(*executor), host.environment | environment)

    def run(self, program: list[Call]) -> tuple[Answers | str, Answers | str]:
        """What it gave on both; the next one begins with the same past on both."""
        self.native.begin(program)
        self.remoted.begin(program)
        mine, yours = self.native.end(), self.remoted.end()
        # -1, -1: the context is lost
        if any(isinstance(said, str) or said[-1][-1] for said in (mine, yours)):
            self.close()
        return mine, yours

    def run_alone(self, program: list[Call]) -> tuple[Answers | str, Answers | str]:
        """In processes that have run no other."""
        self.close()
        answers = self.run(program)
        self.close()
        return answers

    def close(self) -> None:
        self.native.close()
        self.remoted.close()
