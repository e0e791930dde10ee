# SPDX-License-Identifier: Apache-2.0
"""Which entry points differential tests have reached on a GPU: with success, and with an error.

From $OUT of tests/gpu/run.sh: errors/*.tsv (what native and remoted calls gave alike) and
reached.tsv (what the driver API cases called through kvgpu; natively they pass, too).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from differential.errors import read  # noqa: E402  (needs the path)

RECORDED = ROOT / "tests/data/coverage.json"
Reached = dict[str, dict[str, str]]  # by entry point, "success" or "error": the part that did


def note(reached: Reached, name: str, code: str, part: str) -> None:
    """`code`: a CUresult."""
    kind = "success" if code == "0" else "error"
    base = re.sub(r"_pt[sd][sz]$", "", name)
    reached.setdefault(base, {}).setdefault(kind, part)


def by_errors(folder: Path) -> Reached:
    """What PART=errors has seen; only what both sides gave."""
    reached: Reached = {}
    for path in sorted(folder.rglob("errors/native.tsv")):
        native, remoted = read(path), read(path.with_name("remoted.tsv"))
        for name, rows in remoted.items():
            for what, outcome in rows.items():
                code = outcome.split(" ")[0]
                if code.isdigit() and native.get(name, {}).get(what) == outcome:
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
    """Add what a run has reached to tests/data/coverage.json. Returns how many entry points."""
    found: dict[str, Any] = {"reached": {}}
    if RECORDED.exists():
        found = json.loads(RECORDED.read_text())
    new = {**by_errors(folder)}
    for name, kinds in by_cases(folder).items():
        new[name] = kinds | new.get(name, {})
    if new:
        for name, kinds in new.items():
            found["reached"].setdefault(name, {}).update(kinds)
        found |= {"gpu": gpu, "commit": commit}
        found["reached"] = dict(sorted(found["reached"].items()))
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    return len(new)
