# SPDX-License-Identifier: Apache-2.0
"""Put the results of several calls together: bench.json, bench.md and bench.png in a folder.

python -m benchmarks.report OUT FILE.json...: what a later file has counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import catalog, results

ROOT = Path(__file__).resolve().parents[1]
DRAW_S = 120
# The first one that has matplotlib: `make` makes the second, from requirements.lock.
PYTHONS = (sys.executable, str(ROOT / "build/bench-venv/bin/python"), "python3")


def finish(
    table: catalog.Catalog,
    found: results.Results,
    out: Path,
    earlier: results.Results | None = None,
    targets: bool = False,
) -> int:
    """Write all three, say what is wrong; returns the exit status."""
    found.write(out / "bench.json", table)
    (out / "bench.md").write_text(results.markdown(table, found))
    if not draw(out / "bench.json", out / "bench.png"):
        print("bench: no bench.png, for want of matplotlib: make bench-report FILES=…")
    reached = sum(results.holds(table.rows[name], row) for name, row in found.rows.items())
    print(f"figure: {reached} of {len(found.rows)} rows reach their target")
    for name, why in found.missing.items():
        print(f"bench: {name} was not measured: {why}")
    worse = results.regressions(table, earlier, found) if earlier else []
    for line in worse:
        print(f"bench: regression: {line}")
    missed = reached < len(found.rows)
    return int(bool(found.missing or worse or not found.rows or (targets and missed)))


def draw(source: Path, picture: Path) -> bool:
    """Draw with whichever Python can."""
    script = Path(__file__).with_name("draw.py")
    for python in PYTHONS:
        try:
            done = subprocess.run(
                [python, "-P", str(script), str(source), str(picture)],
                capture_output=True,
                timeout=DRAW_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="report", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--compare", type=Path, metavar="EARLIER.json")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    together = results.Results()
    for path in options.files:
        together.add(results.read(path))
    earlier = results.read(options.compare) if options.compare else None
    return finish(catalog.load(), together, options.out, earlier)


if __name__ == "__main__":
    sys.exit(main())
