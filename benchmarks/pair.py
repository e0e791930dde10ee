# SPDX-License-Identifier: Apache-2.0
"""Run a benchmark natively and through kvgpu, alternating, and print the figures side by side.

The benchmark prints `name value unit` lines. Native and remoted runs alternate, so that a clock or
a temperature that drifts falls on both; the ratio is the median over the pairs. Asserts nothing.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RUN_TIMEOUT_S = 240
REMOTED = (sys.executable, "-m", "kvgpu.host.cli", "run", "--")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure."""

    value: float
    unit: str


def parse(output: str) -> dict[str, Figure]:
    """Return the figures of a benchmark's output; other lines are commentary."""
    figures = {}
    for line in output.splitlines():
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
    figures = parse(run.stdout)
    if not figures:
        raise SystemExit(f"bench: {' '.join(command)} printed no `name value unit` line")
    return figures


def table(pairs: Sequence[tuple[dict[str, Figure], dict[str, Figure]]]) -> list[str]:
    """Return the lines of the comparison, one per figure that every run gave."""
    names = [name for name in pairs[0][0] if all(name in run for pair in pairs for run in pair)]
    width = max(len(name) for name in names)
    lines = [f"{'':{width}}  {'native':>12}  {'remoted':>12}  remoted/native"]
    for name in names:
        native = median(pair[0][name].value for pair in pairs)
        remoted = median(pair[1][name].value for pair in pairs)
        ratios = [
            pair[1][name].value / pair[0][name].value for pair in pairs if pair[0][name].value
        ]
        ratio = f"{median(ratios):14.3f}" if ratios else f"{'-':>14}"
        unit = pairs[0][0][name].unit
        lines.append(f"{name:{width}}  {native:12.3f}  {remoted:12.3f}  {ratio}  {unit}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="native and remoted runs each")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the benchmark")
    options = parser.parse_args()
    if not options.command or options.pairs < 1:
        parser.error("needs a command and at least one pair")
    pairs = []
    for number in range(options.pairs):
        print(f"bench: pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
        pairs.append((measure(options.command), measure([*REMOTED, *options.command])))
    print("\n".join(table(pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
