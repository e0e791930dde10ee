# SPDX-License-Identifier: Apache-2.0
"""Good and bad calls of every entry point, natively and through kvgpu: the same CUresults.

python -P tests/differential/errors.py [--driver nvidia] [--share K/N] [--out DIR] [ENTRY_POINT...]
Writes DIR/native.tsv and DIR/remoted.tsv, one line per entry point: `what: what it gave`. Says what
differs, but for what tests/data/error_differences.toml explains. Exit status 1 if there is
anything to say, or if not all calls could be made in time.

A process makes many calls, each with objects of its own, until one leaves it unsound. So that no
call is judged by what others before it did, what differs or cannot be judged (a crash, a hang,
objects that could not be made) is done again by a process of its own, whose answer is the one that
counts; and some calls are made in another order, too, just to see that this changes nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.differences import (
    UNDEFINED,
    Results,
    differing,
    either,
    unexplained,
)
from differential.processes import Run, merged, read, text_of
from differential.rows import (
    ALONE,
    BATCH,
    GOOD,
    LASTING,
    STATES,
    Row,
    batches,
    cut,
    functions,
)
from framework.recorded import RECORDED

BAD_CALLS = RECORDED / "bad_calls.tsv"  # what an H200 gave
JOBS = 8  # processes of one side at once: a GPU's contexts begin one after another


@contextmanager
def drivers(driver: str) -> Iterator[dict[str, dict[str, str]]]:
    """The environment of programs, by side."""
    from framework.loopback import BUILD, loopback

    native = dict(os.environ)
    if driver == "software":
        native["LD_LIBRARY_PATH"] = str(BUILD / "host/software_gpu")
    with loopback(driver=driver) as host, host.open_run() as socket:
        library = {"KVGPU_SOCKET": socket, "LD_LIBRARY_PATH": host.environment["KVGPU_LIBCUDA_DIR"]}
        yield {"native": native, "remoted": host.environment | library}


class Sides:
    """The driver, or what was recorded of one, beside kvgpu."""

    def __init__(self, options: argparse.Namespace, environments: dict[str, Any]) -> None:
        self.options, self.environments = options, environments
        self.software = options.driver == "software"
        self.end_s = time.monotonic() + options.limit_s
        self.results: dict[str, Results] = {side: {} for side in environments}
        self.n_late = 0

    def take_known(self, todo: list[list[Row]]) -> list[list[Row]]:
        """Count what the driver is known to give as made; returns what is left to make natively."""
        known = read(self.options.known) if self.options.known else {}
        left: list[list[Row]] = []
        for rows in todo:
            left.append([])
            for name, what in rows:
                said = known.get(name, {}).get(what)
                if said is None:
                    left[-1].append((name, what))
                else:
                    self.results["native"].setdefault(name, {})[what] = said
        return [rows for rows in left if rows]

    def run(self, side: str, todo: list[list[Row]], suffix: str = "") -> Results:
        """Make the calls; what they give replaces what was known."""
        run = Run(self.environments[side], self.options.out / f"{side}{suffix}.tsv", self.end_s)
        results = run.all(todo, self.options.jobs)
        print(f"{side}{suffix}: {run.figures()}", flush=True)
        n_late = sum(what not in results.get(name, {}) for rows in todo for name, what in rows)
        if n_late:
            print(f"late     {n_late} {side}{suffix} calls: not in {self.options.limit_s:.0f} s")
            self.n_late += n_late
        if suffix != ".order":
            self.results[side] = merged(self.results[side], results)
        return results

    def both(self, todo: list[list[Row]]) -> None:
        """Likewise on both sides at once."""
        of_sides = {"native": self.take_known(todo), "remoted": todo}
        with ThreadPoolExecutor(len(of_sides)) as pool:
            done = [pool.submit(self.run, side, rows) for side, rows in of_sides.items()]
        for side in done:
            side.result()

    def native(self) -> Results:
        """What the driver gave, or is known to give."""
        found = self.results["native"]
        return either(found, read(self.options.recorded)) if self.options.recorded else found

    def unexplained(self) -> dict[str, tuple[str, str]]:
        return unexplained(self.native(), self.results["remoted"], software=self.software)

    def different(self) -> list[Row]:
        return [
            (name, what) for name, _, what in (row.partition(": ") for row in self.unexplained())
        ]

    def unsettled(self) -> list[Row]:
        """What a native call of its own is to settle: what differs or agrees with anything."""
        known = read(BAD_CALLS) if BAD_CALLS.exists() and not self.software else {}
        found = set(self.different())
        for name, rows in self.results["native"].items():
            for what, said in rows.items():
                is_unmade = said.startswith("not made") and what == GOOD and not self.software
                is_known = known.get(name, {}).get(what) == said
                if (said in UNDEFINED or is_unmade) and not is_known:
                    found.add((name, what))
        return sorted(found)

    def settle(self) -> None:
        """Make natively, each by a process of its own, the calls that company may have disturbed;
        then remoted those that differ still.
        """
        for side, rows in (("native", self.unsettled), ("remoted", self.different)):
            alone = [[row] for row in rows()]
            if alone:
                self.run(side, alone, ".alone")

    def order(self, n: int) -> list[str]:
        """What some native calls give otherwise where others come before them.

        Of those that were made, that the driver survives, and that kvgpu agrees with: where it
        differs, the reason for that covers this, too.
        """
        known = self.results["native"]
        others = differing(self.native(), self.results["remoted"])
        rows = [
            (name, what)
            for name in known
            for what in known[name]
            if what in STATES and name not in ALONE | LASTING and f"{name}: {what}" not in others
            if not known[name][what].startswith(("not made", *UNDEFINED))
        ]
        chosen = random.Random(0).sample(rows, min(n, len(rows)))
        shuffled = self.run("native", cut(chosen, BATCH), ".order")
        print("figure:", len(chosen), "native calls made in another order, too,", end=" ")
        found = [
            f"{name}: {what}: {known[name][what]} and {mine} in another order"
            for name, what in chosen
            if (mine := shuffled.get(name, {}).get(what, known[name][what])) != known[name][what]
        ]
        print(f"{len(found)} gave otherwise")
        return found

    def write(self) -> None:
        for side, results in self.results.items():
            (self.options.out / f"{side}.tsv").write_text(text_of(results))


def without_multicast(names: list[str]) -> list[str]:
    """Where several GPUs may share an NVLink switch with other machines', its multicast stays
    unused: a program that ends badly can take it from all of them. With one GPU the driver refuses.
    """
    from gpu.workloads.compare import count_gpus

    kept = [name for name in names if not name.startswith("cuMulticast")]
    if len(kept) == len(names) or count_gpus() < 2:
        return names
    print(f"not run {len(names) - len(kept)} cuMulticast*: several GPUs")
    return kept


def share_of(names: list[str], share: str) -> list[str]:
    """Those that the Kth of N runs is about (share: K/N)."""
    k, n = map(int, share.split("/"))
    return names[k - 1 :: n]


def compare(options: argparse.Namespace, todo: list[list[Row]]) -> int:
    """Say what differs, in a process of its own, too, without a known reason."""
    with drivers(options.driver) as environments:
        sides = Sides(options, environments)
        sides.both(todo)
        sides.settle()
        others = sides.order(options.sample)
    sides.write()
    found = sides.unexplained()
    n = len(differing(sides.native(), sides.results["remoted"]))
    print(f"figure: {n} differences, {len(found)} of them without a known reason")
    for row, (mine, yours) in found.items():
        print(f"differs  {row}: {mine} natively, {yours} remoted")
    for row in others:
        print(f"order    {row}")
    return 1 if found or others or sides.n_late else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ENTRY_POINT")
    parser.add_argument("--driver", default="software", choices=["software", "nvidia"])
    parser.add_argument("--out", type=Path, default=Path("build/errors"))
    parser.add_argument("--recorded", type=Path, help="as good: what another driver gave")
    parser.add_argument(
        "--known",
        type=Path,
        help="what this driver gave before: made again natively only where kvgpu differs",
    )
    parser.add_argument("--native-only", action="store_true", help="needs nothing of kvgpu")
    parser.add_argument("--share", default="1/1", metavar="K/N", help="every Nth entry point")
    parser.add_argument("--sample", type=int, default=20, help="calls in another order, too")
    parser.add_argument("--limit-s", type=float, default=120.0, help="for all of it")
    parser.add_argument("--jobs", type=int, default=min(JOBS, os.cpu_count() or 1))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.names or share_of(functions(), options.share)
    if options.driver != "software":
        names = without_multicast(names)
    careful = options.native_only or options.driver != "software"
    todo = batches(names, careful=careful)
    if not options.native_only:
        return compare(options, todo)
    run = Run(os.environ, options.out / "native.tsv", time.monotonic() + options.limit_s)
    run.all(todo, options.jobs)
    print(f"native: {run.figures()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
