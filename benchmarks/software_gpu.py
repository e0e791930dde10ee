# SPDX-License-Identifier: Apache-2.0
"""How fast the software GPU runs kernels, beside what it has to reach.

Runs `tests/programs/speed` through `kvgpu run`. The best of three counts, for what else runs on the
machine only slows it down. Exits 1 when a limit is missed.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.figures import Figure, measure

N_RUNS = 3
KVGPU_RUN = (sys.executable, "-m", "kvgpu.host.cli", "run", "--driver", "software", "--")


@dataclass(frozen=True, slots=True)
class Limit:
    """What a figure must reach: at least so many (rates), or at most (times)."""

    at_least: float | None = None
    at_most: float | None = None

    def best(self, values: list[float]) -> float:
        """Return the one of the measured values that counts."""
        return max(values) if self.at_least is not None else min(values)

    def holds(self, value: float) -> bool:
        """Tell whether `value` is good enough."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most

    def __str__(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least else f"at most {self.at_most:g}"


LIMITS = {
    "lanes": {  # PTX instructions on one lane each, by one core
        name: Limit(at_least=200) for name in ("integer_lanes", "float_lanes", "memory_lanes")
    },
    "sgemm": {"sgemm_512": Limit(at_most=10)},
    "vector_add": {"vector_add_1000000": Limit(at_most=0.3)},
    "cores": {"sgemm_512_faster_on_two_cores": Limit(at_least=1.3)},
}


def best_of(command: list[str], limits: dict[str, Limit]) -> dict[str, Figure]:
    """Return the best figures of a few runs."""
    try:
        runs = [measure([*command]) for _ in range(N_RUNS)]
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f"software_gpu: {error}") from None
    return {
        name: Figure(limit.best([run[name].value for run in runs]), runs[0][name].unit)
        for name, limit in limits.items()
    }


def on_two_cores(program: str) -> dict[str, Figure]:
    """Return how much faster SGEMM is on two cores than on one."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("software_gpu: this machine has one core")
    seconds = [
        best_of(
            ["taskset", "-c", ",".join(map(str, some)), *KVGPU_RUN, program, "sgemm"],
            LIMITS["sgemm"],
        )["sgemm_512"].value
        for some in (cores[:1], cores)
    ]
    return {"sgemm_512_faster_on_two_cores": Figure(seconds[0] / seconds[1], "times")}


def main() -> int:
    """Measure what is asked for; 0 when all limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", choices=[[], *LIMITS], help="without: all")
    parser.add_argument("--program", default="build/release/tests/programs/speed")
    arguments = parser.parse_args()
    missed = False
    for what in arguments.what or LIMITS:
        limits, program = LIMITS[what], arguments.program
        figures = (
            on_two_cores(program)
            if what == "cores"
            else best_of([*KVGPU_RUN, program, what], limits)
        )
        parts = [f"{n} {figures[n].value:.4g} {figures[n].unit} ({limits[n]})" for n in limits]
        missed |= not all(limit.holds(figures[name].value) for name, limit in limits.items())
        print(f"figure: {', '.join(parts)} (host process)")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
