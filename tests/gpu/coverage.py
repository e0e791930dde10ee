# SPDX-License-Identifier: Apache-2.0
"""Which entry points differential tests reach, with success and with an error.

python -P tests/gpu/coverage.py [--cases]: on the software GPU, into tests/data/coverage.json: what
the calls of errors.py reach (half a minute), or the cases, too (minutes). On a GPU: report.py takes
it from $OUT of run.sh, errors*/*.tsv (what both sides gave alike) and reached.tsv (what
the driver API cases called through kvgpu; natively they pass, too).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from differential.differences import IMPOSSIBLE  # noqa: E402  (needs the path)
from differential.processes import read  # noqa: E402
from framework.loopback import LOOPBACK, case_filter, case_names, loopback  # noqa: E402
from framework.traces import write_reached  # noqa: E402

RECORDED = ROOT / "tests/data/coverage.json"
SOFTWARE = "software GPU"
Reached = dict[str, dict[str, str]]  # by entry point, "success" or "error": the part that did


def note(reached: Reached, name: str, code: str, part: str) -> None:
    """`code`: a CUresult."""
    kind = "success" if code == "0" else "error"
    reached.setdefault(re.sub(r"_pt[sd][sz]$", "", name), {}).setdefault(kind, part)


def by_errors(folder: Path) -> Reached:
    """What PART=errors has seen; only what both sides gave, where native calls were possible."""
    reached: Reached = {}
    for path in sorted(folder.rglob("errors*/native.tsv")):
        native, remoted = read(path), read(path.with_name("remoted.tsv"))
        for name, rows in remoted.items():
            for what, outcome in rows.items():
                code = outcome.split(" ")[0]
                mine = native.get(name, {}).get(what, "")
                if code.isdigit() and (mine == outcome or mine.startswith(IMPOSSIBLE)):
                    note(reached, name, code, "errors")
    return reached


def by_cases(folder: Path) -> Reached:
    """What PART=cases has called."""
    reached: Reached = {}
    for path in sorted(folder.rglob("reached.tsv")):
        for line in path.read_text().splitlines():
            name, code = line.split("\t")
            note(reached, name, code, "cases")
    return reached


def merge(folder: Path, gpu: str, commit: str) -> int:
    """Add what the tests reached on a GPU. Returns how many entry points these are."""
    new = by_errors(folder)
    for name, kinds in by_cases(folder).items():
        new[name] = kinds | new.get(name, {})
    if not new:
        return 0
    recorded: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    known = recorded.get(gpu, {}).get("reached", {})
    for name, kinds in new.items():
        known[name] = known.get(name, {}) | kinds
    recorded[gpu] = {"commit": commit, "reached": known}
    RECORDED.write_text(text_of(recorded))
    return len(new)


def text_of(recorded: dict[str, Any]) -> str:
    """As JSON, one line per entry point."""
    runs = []
    for gpu, run in sorted(recorded.items()):
        reached = sorted(run["reached"].items())
        lines = [f"  {json.dumps(name)}: {json.dumps(kinds)}" for name, kinds in reached]
        head = f' {json.dumps(gpu)}: {{"commit": {json.dumps(run["commit"])}, "reached": {{\n'
        runs.append(head + ",\n".join(lines) + "\n }}")
    return "{\n" + ",\n".join(runs) + "\n}\n"


def run_errors(folder: Path) -> None:
    """Run part errors with the software GPU; some entry points need two devices."""
    errors = ROOT / "tests/differential/errors.py"
    command = [sys.executable, "-P", str(errors), "--out", str(folder / "errors")]
    two = {**os.environ, "KVGPU_SOFTWARE_GPU_DEVICES": "2"}
    subprocess.run(command, env=two, check=False)  # what differs is for its own test


def run_cases(folder: Path) -> None:
    """Likewise the cases."""
    with loopback() as host:
        for number, case in enumerate(case_names()):
            trace = folder / f"trace.{number}"
            host.run(LOOPBACK / "driver_cases", case_filter(case), KVGPU_TRACE=str(trace))
    write_reached(folder)


def main() -> int:
    head = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        run_errors(Path(folder))
        if "--cases" in sys.argv:
            run_cases(Path(folder))
        print(f"coverage: {merge(Path(folder), SOFTWARE, commit)} entry points reached")
    return 0


if __name__ == "__main__":
    sys.exit(main())
