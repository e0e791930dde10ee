# SPDX-License-Identifier: Apache-2.0
"""What random programs of calls (run.sh stateful, whole or in shares) have shown on a GPU."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests/data/random_programs.json"
COUNTS = ("programs", "calls", "failed calls")


def merge(folders: list[Path], gpu_of: Any, commit: str) -> str:
    """Add the shares of one run up; what no folder has stays. Returns a line, or nothing."""
    paths = sorted({path for folder in folders for path in folder.rglob("stateful.json")})
    if not paths:
        return ""
    sums: Counter[str] = Counter()
    different: Counter[str] = Counter()
    for path in paths:
        share = json.loads(path.read_text())
        sums.update({name: share["done"].get(name, 0) for name in COUNTS})
        sums["late"] += share["late"]
        different.update({kind: share["n_found"].get(kind, 1) for kind in share["found"]})
    recorded: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    recorded[gpu_of(paths[-1].parent)] = {
        "commit": commit,
        **sums,
        "different": dict(sorted(different.items())),
    }
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    return (
        f"report: {sums['programs']} random programs, {sums['late']} not made, "
        f"{different.total()} differences of {len(different)} kinds"
    )
