# SPDX-License-Identifier: Apache-2.0
"""How fast the software GPU runs kernels, beside what it has to reach.

Runs `tests/programs/speed` through `kvgpu run`. The best of three counts, for what else runs on the
machine only slows it down. Exits 1 when a limit is missed.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass

from pair import Figure, measure

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
}


def main() -> int:
    """Measure what is asked for; 0 when all limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", choices=list(LIMITS), help="without: all")
    parser.add_argument("--program", default="build/release/tests/programs/speed")
    arguments = parser.parse_args()
    missed = False
    for what in arguments.what or LIMITS:
        try:
            runs = [measure([*KVGPU_RUN, arguments.program, what]) for _ in range(N_RUNS)]
        except subprocess.TimeoutExpired as error:
            raise SystemExit(f"software_gpu: {error}") from None
        parts = []
        for name, limit in LIMITS[what].items():
            best: Figure = runs[0][name]
            value = limit.best([run[name].value for run in runs])
            parts.append(f"{name} {value:g} {best.unit} ({limit})")
            missed |= not limit.holds(value)
        print(f"figure: {', '.join(parts)} (host process)")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
