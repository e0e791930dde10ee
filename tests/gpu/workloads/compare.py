# SPDX-License-Identifier: Apache-2.0
"""Run workloads natively, through kvgpu and natively again; say whether the results are the same.

python compare.py OUT [--only NAME]... [--part K/N]: writes OUT/NAME.json for each, with verdict and
times, and OUT/NAME.RUN.log. Exit status 1 where a result differs or a run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpu.workloads.catalog import WORKLOADS, Workload
from gpu.workloads.record import Record

RUN_LIMIT_S = 240
REMOTED = (sys.executable, "-m", "kvgpu.host.cli", "run", "--")
SPREAD_FACTOR = 3  # two native runs show little of a spread
SLOW = 3.0


@dataclass
class Result:
    """What the runs of one workload showed; `pairs`: seconds natively (mean) and remoted."""

    name: str
    title: str
    problems: list[str] = field(default_factory=list)
    n_compared: int = 0
    pairs: dict[str, tuple[float, float]] = field(default_factory=dict)

    def line(self) -> str:
        word = "FAILED " if self.problems else "same   "
        native, remoted = self.pairs.get("all", (0.0, 0.0))
        slow = [n for n, (a, b) in self.pairs.items() if a and b > SLOW * a]
        late = f", over {SLOW:g} times native's: {', '.join(slow)}" if slow else ""
        return f"{word} {self.name}: {native:.2f} s natively, {remoted:.2f} s remoted{late}"


def load(path: Path) -> Record:
    return Record(**json.loads(path.read_text()))


def run(workload: Workload, name: str, out: Path, prefix: tuple[str, ...] = ()) -> Record | None:
    """One run; None where it failed, which OUT/NAME.RUN.log then tells."""
    path = out / f"{workload.name}.{name}.json"
    path.unlink(missing_ok=True)
    path_entries = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | workload.environment | {"PYTHONPATH": ":".join(path_entries)}
    command = [*prefix, "python3", "-P", "-m", "gpu.workloads", workload.name, str(path)]
    with (out / f"{workload.name}.{name}.log").open("w") as log:
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=RUN_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            log.write(f"no end after {RUN_LIMIT_S} s\n")
            return None
    return load(path) if done.returncode == 0 and path.exists() else None


def far(natives: list[Record], remoted: Record, name: str) -> str:
    """How far the remoted numbers are off, or nothing where they are as near as native's."""
    (first, relative), (second, _) = (native.near[name] for native in natives)
    values, _ = remoted.near[name]
    if not len(first) == len(second) == len(values):
        return f"{name}: {len(first)}, {len(second)} values natively, {len(values)} remoted"
    scale = max(map(abs, first), default=0.0)
    for index, (a, b, value) in enumerate(zip(first, second, values, strict=True)):
        allowed = max(relative * max(abs(a), 0.01 * scale), SPREAD_FACTOR * abs(a - b))
        if not abs(value - a) <= allowed:  # NaN is far
            return f"{name}[{index}]: {a!r} and {b!r} natively, {value!r} remoted"
    return ""


def differences(natives: list[Record], remoted: Record) -> list[str]:
    """All that the remoted run has otherwise than the native ones."""
    found = []
    first, second = natives
    for kind in ("same", "near"):
        names = [list(getattr(record, kind)) for record in (first, second, remoted)]
        if not names[0] == names[1] == names[2]:
            return [f"other results: {names}"]
    if not first.same and not first.near:
        return ["nothing was compared"]
    for name, value in first.same.items():
        if second.same[name] != value:
            found.append(f"{name}: not the same in two native runs")
        elif remoted.same[name] != value:
            found.append(f"{name}: {value!r} natively, {remoted.same[name]!r} remoted")
    found += filter(None, (far(natives, remoted, name) for name in first.near))
    return found


def compare(workload: Workload, out: Path) -> Result:
    """The three runs of one workload."""
    result = Result(workload.name, workload.title)
    runs: list[Record | None] = [
        run(workload, "native", out),
        run(workload, "remoted", out, REMOTED),
        run(workload, "native-again", out),
    ]
    names = ("natively", "remoted", "natively again")
    result.problems = [f"failed {name}" for name, r in zip(names, runs, strict=True) if r is None]
    first, remoted, second = runs
    if first and second and remoted:
        result.problems = differences([first, second], remoted)
        result.n_compared = len(first.same) + len(first.near)
        result.pairs = {
            name: ((first.seconds[name] + second.seconds[name]) / 2, seconds)
            for name, seconds in remoted.seconds.items()
        }
    return result


def chosen(options: argparse.Namespace, n_gpus: int) -> list[Workload]:
    """The workloads that were asked for; those for more GPUs than are here are said."""
    unknown = set(options.only) - {known.name for known in WORKLOADS}
    if unknown:
        raise SystemExit(f"compare: no workload {', '.join(sorted(unknown))}")
    listed = [known for known in WORKLOADS if not options.only or known.name in options.only]
    for workload in listed:
        if workload.n_gpus > n_gpus:
            print(f"not run {workload.name}: needs {workload.n_gpus} GPUs, here are {n_gpus}")
    fitting = [known for known in listed if known.n_gpus <= n_gpus]
    part, n_parts = (int(number) for number in options.part.split("/"))
    return fitting[part - 1 :: n_parts]


def count_gpus() -> int:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return listed.stdout.count("GPU ")


def report(result: Result, out: Path) -> None:
    print(result.line(), flush=True)
    for problem in result.problems:
        print(f"        {problem[:400]}")
    if any(problem.startswith("failed remoted") for problem in result.problems):
        lines = (out / f"{result.name}.remoted.log").read_text(errors="replace").splitlines()
        print("\n".join(f"        | {line[:300]}" for line in lines[-12:]))
    data: dict[str, Any] = asdict(result)
    (out / f"{result.name}.json").write_text(json.dumps(data, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    workloads = chosen(options, count_gpus())
    results = []
    for workload in workloads:
        results.append(compare(workload, options.out))
        report(results[-1], options.out)
    good = sum(not result.problems for result in results)
    print(f"figure: {good} of {len(results)} workloads give native's results through kvgpu")
    return 0 if results and good == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
