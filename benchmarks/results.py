# SPDX-License-Identifier: Apache-2.0
"""What was measured: kept as JSON, told as Markdown, compared with an earlier run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.catalog import Catalog, Row
from benchmarks.figures import Figure

LEAST_CHANGE = 0.01  # a change of the median by less than this is none, however small the spread
MIN_PAIRS = 5  # fewer say nothing about a target
DIGITS = 4  # that are told


@dataclass
class Measured:
    """One row's figures, pair by pair; native's are missing where nothing runs natively."""

    unit: str = ""
    native: list[float | None] = field(default_factory=list)
    remoted: list[float] = field(default_factory=list)

    def add(self, native: Figure | None, remoted: Figure) -> None:
        self.unit = remoted.unit
        self.native.append(native.value if native else None)
        self.remoted.append(remoted.value)

    def values(self, row: Row) -> list[float]:
        both = zip(self.native, self.remoted, strict=True)
        found = (row.value(native, remoted) for native, remoted in both)
        return [value for value in found if value is not None]


@dataclass(frozen=True, slots=True)
class Summary:
    """The median, and the middle half of the values."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        return self.high - self.low


def summary(values: list[float]) -> Summary | None:
    if not values:
        return None
    if len(values) == 1:
        return Summary(values[0], values[0], values[0])
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Summary(middle, low, high)


@dataclass
class Results:
    """All rows of a run, or of several on such machines."""

    machine: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Measured] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # row: why

    def summary(self, row: Row) -> Summary | None:
        measured = self.rows.get(row.id)
        return summary(measured.values(row)) if measured else None

    def add(self, other: Results) -> None:
        """Take over what another call has measured; what is in both is the other's."""
        for name, fact in other.machine.items():
            facts = self.machine.get(name, fact).split("; ")
            self.machine[name] = "; ".join(dict.fromkeys([*facts, *fact.split("; ")]))
        self.missing = {**self.missing, **other.missing}
        self.rows |= other.rows
        for name in other.rows:
            if name not in other.missing:
                self.missing.pop(name, None)

    def write(self, path: Path, catalog: Catalog) -> None:
        """Write the JSON; whoever is ended meanwhile leaves the earlier one."""
        rows = {name: self._row(catalog.rows[name], m) for name, m in self.rows.items()}
        data = {"machine": self.machine, "rows": rows, "missing": self.missing}
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        os.replace(beside, path)

    def _row(self, row: Row, measured: Measured) -> dict[str, Any]:
        found = summary(measured.values(row))
        target = {"at_least": row.at_least} if row.at_most is None else {"at_most": row.at_most}
        told: dict[str, Any] = {"what": row.what, "of": row.of, "target": target}
        if found:
            told |= {"median": found.median, "low": found.low, "high": found.high}
            told |= {"holds": row.holds(found.median)}
        return told | {
            "unit": measured.unit,
            "native": measured.native,
            "remoted": measured.remoted,
        }


def read(path: Path) -> Results:
    data = json.loads(path.read_text())
    rows = {
        name: Measured(row["unit"], row["native"], row["remoted"])
        for name, row in data["rows"].items()
    }
    return Results(data["machine"], rows, data["missing"])


def regressions(catalog: Catalog, earlier: Results, now: Results) -> list[str]:
    """Say which medians are worse than earlier by more than both spreads together."""
    found = []
    for name in now.rows:
        row = catalog.rows[name]
        before, after = earlier.summary(row), now.summary(row)
        if before is None or after is None or not row.is_worse(after.median, before.median):
            continue
        allowed = max(before.spread + after.spread, LEAST_CHANGE * abs(before.median))
        if abs(after.median - before.median) > allowed:
            found.append(
                f"{name}: {_number(after.median)}, was {_number(before.median)}; "
                f"the spreads explain {_number(allowed)}"
            )
    return found


def markdown(catalog: Catalog, results: Results) -> str:
    """Return the table, with what it was measured on."""
    lines = [*machine_lines(results.machine), ""]
    lines.append("| what | native | remoted | value | spread | target | pairs | holds |")
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in catalog.rows.values():
        if row.id in results.rows:
            lines.append(_line(row, results.rows[row.id]))
    if results.missing:
        lines += ["", "Not measured, or not to the end:", ""]
        lines += [f"- {name}: {why}" for name, why in results.missing.items()]
    return "\n".join(lines) + "\n"


def machine_lines(machine: Mapping[str, str]) -> list[str]:
    return [f"- {name}: {value}" for name, value in machine.items()]


def _line(row: Row, measured: Measured) -> str:
    found = summary(measured.values(row))
    natives = [value for value in measured.native if value is not None]
    cells = [
        row.what,
        f"{_number(median(natives))} {measured.unit}" if natives else "-",
        f"{_number(median(measured.remoted))} {measured.unit}",
        _number(found.median) if found else "-",
        f"{_number(found.low)} to {_number(found.high)}" if found else "-",
        row.target,
        str(len(measured.remoted)),
        verdict(row, measured),
    ]
    return f"| {' | '.join(cells)} |"


def holds(row: Row, measured: Measured) -> bool:
    found = summary(measured.values(row))
    return found is not None and row.holds(found.median)


def verdict(row: Row, measured: Measured) -> str:
    few = "" if len(measured.remoted) >= MIN_PAIRS else f" ({len(measured.remoted)} only)"
    return ("yes" if holds(row, measured) else "no") + few


def _number(value: float) -> str:
    if abs(value) >= 10**DIGITS:
        return f"{value:,.0f}"
    return f"{value:.{DIGITS}g}"
