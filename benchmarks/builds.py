# SPDX-License-Identifier: Apache-2.0
"""Native beside several builds of kvgpu, in turn, on the same processors: which one is faster.

python3 -P -m benchmarks.builds --build OLD=FOLDER --build NEW=build/release [--only ROW,…]: each
folder holds host/worker/kvgpu-worker and guest/libcuda of a build. Prints, for each figure, medians
and the ratio of each to the first side (native, where the subject has it), with its middle half;
writes builds.json after each subject. For subjects that measure when they are told to ("served").
Exit status 1 where one could not be measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks import catalog, results
from benchmarks.processors import Processors, keep_on
from benchmarks.runner import START_S
from benchmarks.served import BenchError, Served
from benchmarks.sides import Side, Sides, choose_driver, command_of, environment_of

NATIVE = "native"
Round = dict[str, dict[str, float]]  # by side: the figures


def build_of(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not folder or name == NATIVE:
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=FOLDER, with a name of your own")
    path = Path(folder).resolve()
    for part in ("host/worker/kvgpu-worker", "guest/libcuda/libcuda.so.1"):
        if not (path / part).exists():
            raise argparse.ArgumentTypeError(f"{folder} has no {part}: is it a build?")
    return name, path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="builds", description=__doc__)
    parser.add_argument("--build", action="append", type=build_of, required=True)
    parser.add_argument("--only", default="", help="subjects or rows of rows.toml, with commas")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--effort", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin nothing after so long")
    parser.add_argument("--driver", default="auto", help="auto, nvidia or software")
    parser.add_argument("--out", type=Path, default=Path("build/builds"))
    return parser.parse_args()


class Comparison:
    """One kvgpud for each build, and a native side."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self._options = options
        self._end_s = time.monotonic() + options.seconds
        self._processors = Processors()
        driver = choose_driver(options.driver)
        self._native = Sides(driver, stack)
        self._builds = {name: Sides(driver, stack, build) for name, build in options.build}

    def rounds(self, subject: catalog.Subject) -> list[Round]:
        """Measure; fewer rounds than asked for where the time is over."""
        found: list[Round] = []
        with ExitStack() as stack:
            sides = self._sides(subject)
            processes = self._start(subject, sides, stack)
            for number in range(self._options.rounds):
                if time.monotonic() > self._end_s:
                    break
                one: Round = {}
                for name in turned(list(sides), number):
                    chosen = self._processors.choose(number, subject.processors)
                    keep_on(chosen, [processes[name].pid, *sides[name].workers()])
                    figures = processes[name].ask("go", subject.limit_s)
                    one[name] = {each: figure.value for each, figure in figures.items()}
                found.append(one)
        return found

    def _sides(self, subject: catalog.Subject) -> dict[str, Side]:
        remoted = next(side for side in subject.sides if side != NATIVE)
        sides = {name: build.get(remoted) for name, build in self._builds.items()}
        if NATIVE in subject.sides:
            sides = {NATIVE: self._native.get(NATIVE), **sides}
        return sides

    def _start(
        self, subject: catalog.Subject, sides: dict[str, Side], stack: ExitStack
    ) -> dict[str, Served]:
        processes = {}
        for name, side in sides.items():
            command = [*command_of(subject.command, self._options.effort), "--served"]
            log = self._options.out / f"{subject.name}.{name}.log"
            process = Served(command, environment_of(subject, side), log)
            stack.callback(process.close)
            process.ask("warm", START_S)
            processes[name] = process
        return processes


def turned(names: list[str], number: int) -> list[str]:
    """Who is first changes, so that what drifts falls on all."""
    at = number % len(names)
    return names[at:] + names[:at]


def tell(subject: str, rounds: Sequence[Round], sides: Sequence[str]) -> None:
    for figure in rounds[0][sides[0]]:
        values = {side: [each[side][figure] for each in rounds] for side in sides}
        line = f"{subject} {figure}: {sides[0]} {median(values[sides[0]]):.5g}"
        for side in sides[1:]:
            ratios = [a / b for a, b in zip(values[side], values[sides[0]], strict=True) if b]
            of = results.summary(ratios)
            line += f" | {side} {median(values[side]):.5g}"
            line += f", {of.median:.3f} ({of.low:.3f} to {of.high:.3f})" if of else ""
        print(f"{line}, {len(rounds)} rounds", flush=True)


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    table = catalog.load()
    try:
        rows = table.choose(name for name in options.only.split(",") if name)
    except catalog.CatalogError as error:
        raise SystemExit(f"builds: {error}") from None
    found: dict[str, list[Round]] = {}
    status = 0
    with ExitStack() as stack:
        comparison = Comparison(options, stack)
        for name in dict.fromkeys(row.subject for row in rows):
            subject = table.subjects[name]
            if subject.kind != "served":
                print(
                    f"builds: {name}: left out: it is no program that waits to be told", flush=True
                )
                continue
            try:
                found[name] = comparison.rounds(subject)
            except BenchError as error:
                print(f"builds: {name}: {error}", flush=True)
                status = 1
                continue
            (options.out / "builds.json").write_text(json.dumps(found))
            if found[name]:
                first = [NATIVE] if NATIVE in subject.sides else []
                tell(name, found[name], [*first, *(build for build, _ in options.build)])
            else:
                print(f"builds: {name}: the time for all is over", flush=True)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
