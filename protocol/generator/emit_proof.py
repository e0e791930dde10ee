# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md: where errors differ, and what differential tests have reached on a GPU."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from kvgpu.protocol.generator.model import Model

SOFTWARE = "software GPU"
_DIFFERENCES = """
## Where an error differs

For every entry point a good call and a table of bad ones (null, zero, huge, freed, of another kind, without a context, in another one, in
a capture, before `cuInit`, after a fault) were made natively and through kvgpu on the same GPU (`make test-gpu PART=errors`), and their
`CUresult`s compared. Where a native call crashes or hangs, kvgpu may answer what it likes. What else differs, as patterns of `entry
point: what`:

| calls | natively | through kvgpu | why |
|---|---|---|---|
"""
_COVERAGE = """
## Reached by differential tests

An entry point counts if a test that runs natively and through kvgpu reached it on a GPU with success and with an error (`make test-gpu`,
parts `errors` and `cases`; written by `make test-gpu-report`). Not counted among all: {beyond}.

"""

_RANDOM = """
## Random programs

Random programs of some 70 valid and invalid calls each (memory of every kind, copies of every shape, streams, events, launches, graphs,
virtual memory, pools, threads), natively and through kvgpu: each status, result and byte (`make test-gpu PART=stateful`). What may differ,
and why, stands in `tests/differential/explained.toml`.

| GPU | programs | calls | of them failed alike | other differences |
|---|---|---|---|---|
"""


def differences_md(known: Path) -> str:
    """The reasons of tests/data/error_differences.toml that concern more than the software GPU."""
    text = _DIFFERENCES
    for table in tomllib.loads(known.read_text()).values():
        if table.get("software"):
            continue
        rows = ", ".join(f"`{row}`" for row in table["rows"])
        gave = [f"`{table[side]}`" if side in table else "" for side in ("native", "remoted")]
        text += f"| {rows} | {gave[0]} | {gave[1]} | {table['reason']} |\n"
    return text


def random_md(recorded: Path) -> str:
    """What programs of tests/differential have shown; nothing where none has been run."""
    if not recorded.exists():
        return ""
    text = _RANDOM
    for gpu, run in json.loads(recorded.read_text()).items():
        different = "; ".join(f"{kind} ({n})" for kind, n in run["different"].items()) or "none"
        text += f"| {gpu} ({run['commit']}) | {run['programs']:,} | {run['calls']:,} "
        text += f"| {run['failed calls']:,} | {different} |\n"
    return text


def counted(model: Model, unreachable: dict[str, Any]) -> list[str]:
    """The entry points that a program could call: no twins, no families that stay out."""
    out = set(unreachable["beyond"])
    names = {*model.by_name, *(n for n, f in model.api.families.items() if f not in out)}
    return sorted(names)


def coverage_md(model: Model, coverage: Path, marks: Path) -> str:
    """How many entry points were reached on a GPU; nothing where none has been used yet."""
    recorded: dict[str, Any] = json.loads(coverage.read_text())
    unreachable = tomllib.loads(marks.read_text())
    names = counted(model, unreachable)
    beyond = ", ".join(unreachable["beyond"].values())
    text = _COVERAGE.format(beyond=beyond)
    for gpu, run in recorded.items():
        if gpu == SOFTWARE:
            continue
        reached, never = run["reached"], unreachable["never"]
        missing = [n for n in names if not is_covered(n, reached, never)]
        share = 100 * (1 - len(missing) / len(names))
        text += f"{gpu} ({run['commit']}): {len(names) - len(missing)} of {len(names)}, "
        text += f"{share:.1f} %.\n\n| not reached | |\n|---|---|\n"
        for name in missing:
            text += f"| `{name}` | {why_not(model, name, reached.get(name, {}))} |\n"
    text += "\nCannot succeed, natively on that GPU or through kvgpu, and count where they failed alike:\n\n| entry point | why |\n|---|---|\n"
    for name, why in unreachable["never"].items():
        text += f"| `{name}` | {why} |\n"
    return text


def is_covered(name: str, reached: dict[str, Any], never: dict[str, str]) -> bool:
    """Whether success and an error were seen, or the error of one that cannot succeed."""
    kinds = reached.get(name, {})
    return "error" in kinds and ("success" in kinds or name in never)


def why_not(model: Model, name: str, kinds: dict[str, str]) -> str:
    if name in model.api.refused:
        return f"refused: {model.api.refused[name]}"
    return "no " + " and no ".join(kind for kind in ("success", "error") if kind not in kinds)
