# SPDX-License-Identifier: Apache-2.0
"""What a benchmark prints: `name value unit` lines."""

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RUN_TIMEOUT_S = 240


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure."""

    value: float
    unit: str


def parse(lines: Iterable[str]) -> dict[str, Figure]:
    """Return the figures of a benchmark's output; other lines are commentary."""
    figures = {}
    for line in lines:
        words = line.split()
        if len(words) != 3 or line.startswith("#"):
            continue
        try:
            figures[words[0]] = Figure(float(words[1]), words[2])
        except ValueError:
            continue
    return figures


def measure(command: Sequence[str]) -> dict[str, Figure]:
    """Run the benchmark once."""
    run = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    if run.returncode:
        raise SystemExit(f"bench: {' '.join(command)}: exit status {run.returncode}\n{run.stdout}")
    figures = parse(run.stdout.splitlines())
    if not figures:
        raise SystemExit(f"bench: {' '.join(command)} printed no `name value unit` line")
    return figures
