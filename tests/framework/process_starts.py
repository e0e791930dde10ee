# SPDX-License-Identifier: Apache-2.0
"""Many starts of one program against a running kvgpud, several at once.

    process_starts.py COUNT JOBS LIMIT_S PROGRAM

runs them against the kvgpud of $KVGPU_RUNTIME_DIR, and prints how many there were.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvgpu.host import paths
from kvgpu.host.client import ApiClient
from kvgpu.host.messages import RunRequest

PINNED_BYTES = 1 << 30
ONE_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the starts came to."""

    n_done: int
    seconds: float
    failures: tuple[str, ...]


def run_many(
    program: Path, count: int, jobs: int, limit_s: float, environment: Mapping[str, str]
) -> Outcome:
    """Start `program` `count` times, `jobs` at once; none starts after `limit_s` seconds.

    One API connection is one `kvgpu run`: what `kvgpu run` sets is set once, for all starts.
    """
    began_s = time.monotonic()
    failures: list[str] = []

    def one(_: int) -> bool:
        if failures or time.monotonic() - began_s > limit_s:
            return False
        done = subprocess.run(
            [str(program)],
            env=child,
            capture_output=True,
            text=True,
            timeout=ONE_LIMIT_S,
            check=False,
        )
        if done.returncode != 0 or not done.stdout:
            failures.append(f"status {done.returncode}\n{done.stdout}{done.stderr}")
        return True

    with ApiClient(Path(environment["KVGPU_RUNTIME_DIR"])) as api:
        child = {
            **environment,
            "KVGPU_SOCKET": str(api.ask(RunRequest(PINNED_BYTES))["socket"]),
            "LD_LIBRARY_PATH": str(environment["KVGPU_LIBCUDA_DIR"]),
        }
        with ThreadPoolExecutor(jobs) as pool:
            n_done = sum(pool.map(one, range(count)))
    return Outcome(n_done, time.monotonic() - began_s, tuple(failures))


def main() -> int:
    """Run from the command line; the exit status says whether all of them ran and were right."""
    count, jobs, limit_s, program = sys.argv[1:]
    environment = {"KVGPU_LIBCUDA_DIR": str(paths.find_libcuda_dir()), **os.environ}
    outcome = run_many(Path(program), int(count), int(jobs), float(limit_s), environment)
    for failure in outcome.failures:
        print(f"FAILED  {failure}")
    n_wrong = len(outcome.failures)
    print(f"figure: {outcome.n_done} process starts in {outcome.seconds:.0f} s, {n_wrong} wrong")
    return 0 if outcome.n_done == int(count) and not outcome.failures else 1


if __name__ == "__main__":
    sys.exit(main())
