# SPDX-License-Identifier: Apache-2.0
"""The two executors that a program is given to, and how their answers differ."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from differential.executor import ABSENT
from framework.loopback import BUILD, LOOPBACK, Loopback

EXECUTOR = Path(__file__).with_name("executor.py")
EXPLAINED = Path(__file__).with_name("explained.toml")
LIMIT_S = 60  # of one program
Call = list[Any]


class Side:
    """An executor, started anew after a program that has ended it or its context."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # `kvgpu run` and its program end together
        )
        assert process.stdout
        line = process.stdout.readline()
        assert line == "ready\n", (self._command, line)
        return process

    def run(self, program: list[Call]) -> list[Any] | None:
        """What each call gave; None where the process died or hangs."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(program) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], LIMIT_S)[0]:
            os.killpg(process.pid, signal.SIGKILL)
        line = process.stdout.readline()
        if not line:
            self.close()
            return None
        answers: list[Any] = json.loads(line)
        if answers[-1][-1] != 0:  # its context is lost
            self.close()
        return answers

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


@dataclass
class Count:
    """What has been compared, and by kind of difference an example and its program."""

    done: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    found: dict[str, tuple[str, list[Call]]] = field(default_factory=dict)


def explained() -> dict[tuple[str, int, int], dict[str, Any]]:
    listed = tomllib.loads(EXPLAINED.read_text()).get("difference", [])
    return {(one["call"], one["native"], one["remoted"]): one for one in listed}


class Pair:
    """A program's two sides: native, and under `kvgpu run`."""

    def __init__(self, host: Loopback, driver: str) -> None:
        environment = {**os.environ, "KERNELS_PTX": str(LOOPBACK / "kernels.ptx")}
        executor = [sys.executable, "-P", str(EXECUTOR)]
        mine = dict(environment)
        if driver == "software":
            mine["LD_LIBRARY_PATH"] = str(BUILD / "host/software_gpu")
        self.native = Side(executor, mine)
        self.remoted = Side(host.command(*executor), host.environment | environment)
        self._explained = explained()

    def close(self) -> None:
        self.native.close()
        self.remoted.close()

    def compare(self, program: list[Call], count: Count) -> list[str]:
        """Run it on both sides; each call whose outcome differs and is not explained."""
        mine = self.native.run(program)
        if mine is None:
            count.done["native ends"] += 1  # nothing to hold kvgpu to
            self.remoted.close()
            return []
        count.done["programs"] += 1
        yours = self.remoted.run(program)
        if yours is None:
            self.native.close()
            return self._note(count, "the process ended or hung, not natively", program, 0)
        if mine[-1][-1] or yours[-1][-1]:  # both begin anew
            self.close()
        lines = self._differing(program, mine, yours, count)
        count.done["calls"] += len(program)
        count.done["failed calls"] += sum(answer[0] not in (0, ABSENT) for answer in mine[:-1])
        return lines

    def _differing(
        self, program: list[Call], native: list[Any], remoted: list[Any], count: Count
    ) -> list[str]:
        lines: list[str] = []
        for number, (mine, yours) in enumerate(zip(native, remoted, strict=True)):
            if mine in (yours, [ABSENT]):
                continue
            name = program[number][0] if number < len(program) else "at the end"
            known = self._explained.get((name, mine[0], yours[0]))
            if known and [mine[1:], yours[1:]] in known.get("results", [[mine[1:], yours[1:]]]):
                count.explained[f"{name}: {mine[0]} natively, {yours[0]} remoted"] += 1
                if known.get("ends"):
                    break
                continue
            call = program[number] if number < len(program) else name
            line = f"#{number} {call}: {mine} natively, {yours} remoted"
            if not lines:  # others may follow from it
                kind = f"{name}: {mine[0]} natively, {yours[0]} remoted"
                self._note(count, kind, program, number, line)
            lines.append(line)
        return lines

    def _note(
        self, count: Count, kind: str, program: list[Call], number: int, line: str = ""
    ) -> list[str]:
        count.done["different programs"] += 1
        shortest = count.found.get(kind, ("", program))[1]
        if kind not in count.found or len(program) < len(shortest):
            count.found[kind] = (line or kind, program)
        return [line or kind]
