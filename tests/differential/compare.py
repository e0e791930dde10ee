# SPDX-License-Identifier: Apache-2.0
"""Random programs of driver API calls, natively and through kvgpu: each status, result, byte.

python -P tests/differential/compare.py N [--jobs J] [--driver nvidia] [--share K/N] [--out FILE]:
the programs FIRST to FIRST + N - 1, or every Nth of them, J at a time. With the software GPU
"natively" is its library itself. The kinds of differences that explained.toml does not have are
printed; FILE gets a program for each. A program that differs, or ends its process, is run again
alone. --only K… runs those programs. shrinking.py finds the smallest program that differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.pair import Count, Pair
from differential.steps import numbered
from framework.loopback import loopback


def work(pair: Pair, numbers: Iterator[int], end_s: float) -> Count:
    count = Count()
    try:
        for number in numbers:
            if time.monotonic() > end_s:
                break
            for line in pair.compare(numbered(number), count):
                print(f"program {number}: {line[:600]}", flush=True)
    finally:
        pair.close()
    for name, side in (("natively", pair.sides.native), ("remoted", pair.sides.remoted)):
        count.done[f"starts {name}"] += side.n_starts
        count.done[f"s starting {name}"] += round(side.start_seconds)
        count.done[f"s {name}"] += round(side.seconds)
    if pair.sides.remoted.lingers and not pair.sides.native.lingers:
        count.note("at its end a process hangs, not natively", "", [])
    return count


def compare(numbers: Iterator[int], driver: str, n_jobs: int, seconds: float) -> Count:
    """Make, run and compare the programs of these numbers."""
    total, end_s = Count(), time.monotonic() + seconds
    with loopback(driver=driver, jail=False) as host, ThreadPoolExecutor(n_jobs) as threads:
        # The next number is whose turn it is: a step of an iterator is one for all threads.
        jobs = [threads.submit(work, Pair(host, driver), numbers, end_s) for _ in range(n_jobs)]
        for job in jobs:
            total.add(job.result())
        for line in host.logs().splitlines():
            _, is_one, what = line.partition("BUG: ")  # what a worker has noticed itself
            if is_one:
                total.n_found[what] += 1
                total.note(what, line, [])
    return total


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=0, metavar="N")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--share", default="1/1", metavar="K/N")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--driver", default="software", choices=["software", "nvidia"])
    options = parser.parse_args(arguments)
    k, n = map(int, options.share.split("/"))
    options.wanted = options.only or range(options.first, options.first + options.n)[k - 1 :: n]
    if not options.wanted:
        parser.error("say how many programs, or which with --only")
    return options


def main() -> int:
    options = options_of()
    begun_s = time.monotonic()
    count = compare(iter(options.wanted), options.driver, options.jobs, options.seconds)
    for kind, (example, _) in sorted(count.found.items()):
        print(f"{kind}\n    {count.n_found[kind]} times: {example[:2000]}")
    for kind, n_times in sorted(count.explained.items()):
        print(f"explained, {n_times} times: {kind}")
    counts = ", ".join(f"{n} {name}" for name, n in count.done.items())
    print(
        f"figure: {len(count.found)} kinds of differences without an explanation: {counts}; "
        f"{time.monotonic() - begun_s:.0f} s"
    )
    # Those that end their process natively, too, have been made.
    n_late = len(options.wanted) - count.done["programs"] - count.done["never natively"]
    if n_late:
        print(f"late: {n_late} of {len(options.wanted)} programs, not in {options.seconds:g} s")
    if options.out:
        made = {"wanted": len(options.wanted), "late": n_late, "done": count.done}
        found = {"explained": count.explained, "found": count.found, "n_found": count.n_found}
        options.out.write_text(json.dumps(made | found) + "\n")
    return 1 if count.found or n_late else 0


if __name__ == "__main__":
    sys.exit(main())
