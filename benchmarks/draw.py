# SPDX-License-Identifier: Apache-2.0
"""Draw bench.json: how fast each row is beside native, and where its target is.

draw.py FILE.json FILE.png: needs matplotlib and nothing of ours, so that any Python may run it.
"""

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

GOOD, BAD, TARGET = "#2a7f62", "#c0392b", "#555555"


def speed(row: dict[str, Any], value: float) -> float:
    """Times become speeds, so that to the right is faster than native in every row."""
    return 1 / value if "at_most" in row["target"] else value


def main() -> None:
    source, picture = sys.argv[1:]
    with open(source) as file:
        data = json.load(file)
    rows = [r for r in data["rows"].values() if r["of"] == "ratio" and r.get("median", 0) > 0]
    rows.reverse()  # the first one is on top
    figure, axes = pyplot.subplots(figsize=(10, 1.6 + 0.3 * len(rows)), layout="constrained")
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    for y, row in enumerate(rows):
        colour = GOOD if row["holds"] else BAD
        ends = sorted(speed(row, row[end]) for end in ("low", "high"))
        (target,) = row["target"].values()
        axes.plot(ends, [y, y], color=colour, linewidth=5, alpha=0.4, solid_capstyle="butt")
        axes.plot(speed(row, row["median"]), y, "o", color=colour, markersize=5)
        axes.plot(speed(row, target), y, "|", color=TARGET, markersize=14)
    axes.set_yticks(range(len(rows)), [row["what"] for row in rows], fontsize=8)
    axes.set_ylim(-1, len(rows))
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("speed beside native (median, middle half of the pairs; | target)")
    machine = data["machine"]
    axes.set_title(f"{machine.get('gpu', '')}, {machine.get('date', '')}: host process", fontsize=9)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
