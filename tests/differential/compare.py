# SPDX-License-Identifier: Apache-2.0
"""Random programs of driver API calls, natively and through kvgpu: each status, result, byte.

python -P tests/differential/compare.py N [--survey FILE] [--driver nvidia]: N programs.
With the software GPU "natively" is its library itself. What differs is shrunk, printed, and ends
the run; with --survey the kinds of differences are listed, and FILE gets a program for each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.executor import ABSENT
from differential.steps import programs
from framework.loopback import BUILD, LOOPBACK, Loopback, loopback

EXECUTOR = Path(__file__).with_name("executor.py")
Survey = dict[str, tuple[str, list[Any]]]  # by kind of difference: an example and its program
N_DONE = {"programs": 0, "calls": 0, "failed calls": 0, "native ends": 0}


class Side:
    """An executor, started anew after a program that has ended it or its context."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        line = process.stdout.readline()
        assert line == "ready\n", (self._command, line)
        return process

    def run(self, program: list[Any]) -> list[Any] | None:
        """What each call gave; None where the process died."""
        if self._process is None:
            self._process = self.start()
        process = self._process
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(program) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            process.wait()
            self._process = None
            return None
        answers: list[Any] = json.loads(line)
        if answers[-1][-1] != 0:  # its context is lost
            self.close()
        return answers

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


def differing(program: list[Any], native: list[Any], remoted: list[Any]) -> list[str]:
    """Each call whose outcome is not the same, and the calls that lead there."""
    lines = []
    for number, (mine, yours) in enumerate(zip(native, remoted, strict=True)):
        call = program[number] if number < len(program) else "at the end"
        if mine not in (yours, [ABSENT]):
            lines.append(f"#{number} {call}: {mine} natively, {yours} remoted")
    return lines


def kind_of(program: list[Any], native: list[Any], remoted: list[Any]) -> str:
    """The first difference of a program (others may follow from it), without its arguments."""
    for number, (mine, yours) in enumerate(zip(native, remoted, strict=True)):
        if mine not in (yours, [ABSENT]):
            name = program[number][0] if number < len(program) else "at the end"
            return f"{name}: {mine[0]} natively, {yours[0]} remoted"
    raise AssertionError("no difference")


def check(native: Side, remoted: Side, program: list[Any], survey: Survey | None = None) -> None:
    """Run the program on both sides; what differs goes into `survey`, else AssertionError."""
    mine = native.run(program)
    if mine is None:
        N_DONE["native ends"] += 1  # nothing to hold kvgpu to
        return
    yours = remoted.run(program)
    assert yours is not None, f"the process died remoted, not natively: {json.dumps(program)}"
    lines = differing(program, mine, yours)
    if lines and survey is not None:
        survey.setdefault(kind_of(program, mine, yours), (lines[0], program))
    else:
        assert not lines, "\n".join([*lines, json.dumps(program)])
    N_DONE["programs"] += 1
    N_DONE["calls"] += len(program)
    N_DONE["failed calls"] += sum(answer[0] not in (0, ABSENT) for answer in mine[:-1])


def sides(host: Loopback, driver: str) -> tuple[Side, Side]:
    """The executor natively and under `kvgpu run`."""
    environment = os.environ | {"KERNELS_PTX": str(LOOPBACK / "kernels.ptx")}
    executor = [sys.executable, "-P", str(EXECUTOR)]
    mine = dict(environment)
    if driver == "software":
        mine["LD_LIBRARY_PATH"] = str(BUILD / "host/software_gpu")
    native = Side(executor, mine)
    return native, Side(host.command(*executor), host.environment | environment)


def compare(n: int, driver: str, seed_number: int, survey: Survey | None) -> None:
    """Make, run and compare `n` programs."""
    with loopback(driver=driver) as host:
        native, remoted = sides(host, driver)

        @seed(seed_number)
        @settings(
            max_examples=n,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(programs())
        def each(program: list[Any]) -> None:
            check(native, remoted, program, survey)

        try:
            each()
        finally:
            native.close()
            remoted.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, metavar="N")
    parser.add_argument("--survey", type=Path, metavar="FILE", help="go on after a difference")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--driver", default="software", choices=["software", "nvidia"])
    options = parser.parse_args()
    begun_s = time.monotonic()
    survey: Survey | None = {} if options.survey else None
    compare(options.n, options.driver, options.seed, survey)
    if survey is not None:
        options.survey.write_text(json.dumps(survey))
        for kind, (example, _) in sorted(survey.items()):
            print(f"{kind}\n    {example[:300]}")
    counts = ", ".join(f"{count} {name}" for name, count in N_DONE.items())
    found = f"{len(survey)} kinds of differences" if survey else "no difference"
    print(f"figure: {found}: {counts}; {time.monotonic() - begun_s:.0f} s")
    return 1 if survey else 0


if __name__ == "__main__":
    sys.exit(main())
