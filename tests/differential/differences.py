# SPDX-License-Identifier: Apache-2.0
"""Where kvgpu's answers differ from a driver's, and which of these are known, for what reason.

tests/data/error_differences.toml: a table per reason, with `reason` in words for a user, `rows`
(patterns as of a shell, `entry point: what`), `native` and `remoted` (patterns of what they gave),
and `software = true` where only the software GPU is concerned.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from differential.rows import refused

Results = dict[str, dict[str, str]]  # by entry point, by what was tried: what it gave
KNOWN = Path(__file__).parents[1] / "data/error_differences.toml"
UNDEFINED = frozenset({"crashes", "hangs"})  # natively: then kvgpu may answer what it likes

IMPOSSIBLE = ("not made", "absent")


@dataclass
class Reason:
    """Why some answers differ."""

    reason: str
    rows: list[str]
    native: str = "*"
    remoted: str = "*"
    software: bool = False

    def covers(self, row: str, mine: str, yours: str) -> bool:
        """Whether a row is one of these."""
        fits = fnmatchcase(mine, self.native) and fnmatchcase(yours, self.remoted)
        return fits and any(fnmatchcase(row, pattern) for pattern in self.rows)


@cache
def known() -> dict[str, Reason]:
    return {name: Reason(**table) for name, table in tomllib.loads(KNOWN.read_text()).items()}


def differing(native: Results, remoted: Results) -> dict[str, tuple[str, str]]:
    """`entry point: what`, and what each side gave."""
    found = {}
    for name, rows in remoted.items():
        for what, yours in rows.items():
            mine = native.get(name, {}).get(what)
            if mine is not None and not agree(name, mine, yours):
                found[f"{name}: {what}"] = (mine, yours)
    return found


def agree(name: str, mine: str, yours: str) -> bool:
    possible = mine.split(" or ")
    if yours in possible or UNDEFINED & set(possible):
        return True
    if mine.startswith(IMPOSSIBLE):
        return yours not in UNDEFINED
    return name in refused() and yours.split()[0] != "0"


def either(native: Results, recorded: Results) -> Results:
    """What one of two drivers gave, as `0 or 1` where these differ."""
    found = {}
    for name, rows in native.items():
        others = recorded.get(name, {})
        found[name] = {
            what: either_of(said, others.get(what, "absent")) for what, said in rows.items()
        }
    return found


def either_of(said: str, other: str) -> str:
    if said.startswith(IMPOSSIBLE):
        return other
    return said if said == other or other.startswith(IMPOSSIBLE) else f"{said} or {other}"


def unexplained(native: Results, remoted: Results, *, software: bool) -> dict[str, tuple[str, str]]:
    """The differences for which there is no reason."""
    reasons = [reason for reason in known().values() if software or not reason.software]
    return {
        row: both
        for row, both in differing(native, remoted).items()
        if not any(reason.covers(row, *both) for reason in reasons)
    }
