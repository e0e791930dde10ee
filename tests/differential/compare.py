# SPDX-License-Identifier: Apache-2.0
"""Random programs of driver API calls, natively and through kvgpu: each status, result, byte.

python -P tests/differential/compare.py N [--jobs J] [--driver nvidia] [--out FILE]: the programs
FIRST to FIRST + N - 1, J at a time. With the software GPU "natively" is its library itself. The
kinds of differences that explained.toml does not have are printed; FILE gets a program for each.
--only K… runs those programs. shrinking.py finds the smallest program that differs.
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

from differential.sides import Count, Pair
from differential.steps import numbered
from framework.loopback import loopback


def work(pair: Pair, numbers: Iterator[int], end_s: float) -> Count:
    count = Count()
    try:
        for number in numbers:
            if time.monotonic() > end_s:
                break
            for line in pair.compare(numbered(number), count)[:1]:
                print(f"program {number}: {line[:300]}", flush=True)
    finally:
        pair.close()
    return count


def compare(numbers: Iterator[int], driver: str, n_jobs: int, seconds: float) -> Count:
    """Make, run and compare the programs of these numbers."""
    total, end_s = Count(), time.monotonic() + seconds
    with loopback(driver=driver, jail=False) as host, ThreadPoolExecutor(n_jobs) as threads:
        # The next number is whose turn it is: a step of an iterator is one for all threads.
        jobs = [threads.submit(work, Pair(host, driver), numbers, end_s) for _ in range(n_jobs)]
        for job in jobs:
            count = job.result()
            total.done.update(count.done)
            total.explained.update(count.explained)
            total.found.update(count.found)
        for line in {line for line in host.logs().splitlines() if "BUG:" in line}:
            total.found[line] = (line, [])  # what a worker has noticed itself
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=0, metavar="N")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--driver", default="software", choices=["software", "nvidia"])
    options = parser.parse_args()
    begun_s = time.monotonic()
    wanted = options.only or range(options.first, options.first + options.n)
    if not wanted:
        parser.error("say how many programs, or which with --only")
    count = compare(iter(wanted), options.driver, options.jobs, options.seconds)
    if options.out:
        options.out.write_text(json.dumps(count.found))
    for kind, (example, _) in sorted(count.found.items()):
        print(f"{kind}\n    {example[:400]}")
    for kind, n_times in sorted(count.explained.items()):
        print(f"explained, {n_times} times: {kind}")
    counts = ", ".join(f"{n} {name}" for name, n in count.done.items())
    print(
        f"figure: {len(count.found)} kinds of differences without an explanation: {counts}; "
        f"{time.monotonic() - begun_s:.0f} s"
    )
    n_late = len(wanted) - count.done["programs"] - count.done["native ends"]
    if n_late:
        print(f"late: {n_late} of {len(wanted)} programs, not in {options.seconds:g} s")
    return 1 if count.found or n_late else 0


if __name__ == "__main__":
    sys.exit(main())
