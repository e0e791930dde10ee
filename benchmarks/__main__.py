# SPDX-License-Identifier: Apache-2.0
"""Native beside remoted, in turn: every row of rows.toml, with its target.

Writes bench.json (after each pair), bench.md and bench.png. Exit status 1 where something could not
be measured, where --compare finds a regression, and, with --targets, where a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import catalog, machine, report, results
from benchmarks.runner import Effort, Runner
from benchmarks.served import BenchError
from benchmarks.sides import Sides, choose_driver

FULL = {"effort": 1.0, "pairs": 5, "seconds": 3600.0}
QUICK = {"effort": 0.1, "pairs": 3, "seconds": 120.0}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", default="", help="subjects or rows of rows.toml, with commas")
    parser.add_argument("--quick", action="store_true", help="at most 2 minutes: a look")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--effort", type=float, help="how much of each measurement (1: all)")
    parser.add_argument(
        "--whole", default="", help="subjects or rows that --effort does not shorten"
    )
    parser.add_argument("--driver", default="auto", help="auto, nvidia or software")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--seconds", type=float, help="begin nothing after so long")
    parser.add_argument("--compare", type=Path, metavar="EARLIER.json")
    parser.add_argument("--targets", action="store_true", help="fail where one is missed")
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def measure(options: argparse.Namespace, table: catalog.Catalog) -> results.Results:
    """Measure the chosen rows; what could not be is told in the results."""
    driver = choose_driver(options.driver)
    effort = Effort(options.effort, whole_subjects(options, table))
    found = results.Results(machine.facts(driver) | {"length": str(effort)})
    rows = table.choose(name for name in options.only.split(",") if name)
    path = options.out / "bench.json"
    with ExitStack() as stack:
        sides = Sides(driver, stack)
        end_s = time.monotonic() + options.seconds
        logs = options.out / "log"
        logs.mkdir(exist_ok=True)
        runner = Runner(sides, effort, options.pairs, end_s, logs)
        for name in dict.fromkeys(row.subject for row in rows):
            subject = table.subjects[name]
            ids = [row.id for row in rows if row.subject == name]
            why = left_out(subject, options, driver)
            if why:
                print(f"bench: {name}: left out: {why}", flush=True)
                continue
            begin_s = time.monotonic()
            try:
                for pair in runner.pairs(subject, ids):
                    for row in ids:
                        if row in pair.remoted:
                            measured = found.rows.setdefault(row, results.Measured())
                            measured.add(pair.native.get(row), pair.remoted[row])
                    found.write(path, table)
            except (BenchError, AssertionError, OSError) as error:
                found.missing |= dict.fromkeys(ids, str(error) or type(error).__name__)
            found.machine["processors"] = str(runner.processors)
            absent = [row for row in ids if row not in found.rows and row not in found.missing]
            found.missing |= dict.fromkeys(absent, "the program printed no such figure")
            found.write(path, table)
            tell(table, found, ids, f"{name}, {time.monotonic() - begin_s:.0f} s")
    return found


def whole_subjects(options: argparse.Namespace, table: catalog.Catalog) -> frozenset[str]:
    names = [name for name in options.whole.split(",") if name]
    return frozenset(row.subject for row in table.choose(names)) if names else frozenset()


def left_out(subject: catalog.Subject, options: argparse.Namespace, driver: str) -> str:
    if subject.gpu and driver == "software":
        return "needs a GPU"
    return "not with --quick" if options.quick and not subject.quick else ""


def tell(table: catalog.Catalog, found: results.Results, ids: list[str], heading: str) -> None:
    print(f"bench: {heading}", flush=True)
    for name in ids:
        row = table.rows[name]
        value = found.summary(row)
        if value is not None:
            word = results.verdict(row, found.rows[name])
            print(
                f"  {name:24} {value.median:9.3f} ({value.low:.3f} to {value.high:.3f}), "
                f"target {row.target}: {word}",
                flush=True,
            )
        if name in found.missing:
            print(f"  {name:24} {found.missing[name]}", flush=True)


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    table = catalog.load()
    earlier = results.read(options.compare) if options.compare else None  # before it takes an hour
    try:
        found = measure(options, table)
    except catalog.CatalogError as error:
        raise SystemExit(f"bench: {error}") from None
    return report.finish(table, found, options.out, earlier, options.targets)


if __name__ == "__main__":
    sys.exit(main())
