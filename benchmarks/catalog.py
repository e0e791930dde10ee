# SPDX-License-Identifier: Apache-2.0
"""The table of rows.toml: what is measured, how, and what each figure has to be."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path(__file__).with_name("rows.toml")
KINDS = ("served", "start", "cost")
BOTH = ("native", "remoted")


class CatalogError(Exception):
    """The table, or a name that is not in it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One program, and how its figures are had."""

    name: str
    kind: str
    command: str
    limit_s: float
    sides: tuple[str, ...] = BOTH
    gpu: bool = False
    quick: bool = True
    until: str = ""
    pairs: int | None = None
    processors: int = 6
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.kind == "start") != (self.until in ("line", "end")):
            raise CatalogError(f"subject {self.name}: kind {self.kind!r}, until {self.until!r}")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and its target."""

    id: str
    what: str
    subject: str
    of: str = "ratio"
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if self.of not in ("ratio", "remoted", "difference"):
            raise CatalogError(f"row {self.id}: of = {self.of!r}")
        if (self.at_most is None) == (self.at_least is None):
            raise CatalogError(f"row {self.id}: needs at_most or at_least")

    @property
    def target(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"

    def holds(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most

    def is_worse(self, value: float, than: float) -> bool:
        return value < than if self.at_least is not None else value > than

    def value(self, native: float | None, remoted: float) -> float | None:
        """Return what the target is about; None where native's figure is missing or zero."""
        if self.of == "remoted":
            return remoted
        if native is None or (self.of == "ratio" and native == 0):
            return None
        return remoted - native if self.of == "difference" else remoted / native


@dataclass(frozen=True, slots=True)
class Catalog:
    subjects: dict[str, Subject]
    rows: dict[str, Row]

    def of(self, subject: str) -> list[Row]:
        return [row for row in self.rows.values() if row.subject == subject]

    def choose(self, names: Iterable[str]) -> list[Row]:
        """Return the rows that these names of subjects and rows mean; without names: all."""
        wanted = set(names)
        unknown = wanted - set(self.subjects) - set(self.rows)
        if unknown:
            raise CatalogError(
                f"no subject or row {', '.join(sorted(unknown))}: "
                f"there are {', '.join(self.subjects)} (rows: {TABLE.name})"
            )
        return [
            row
            for row in self.rows.values()
            if not wanted or row.id in wanted or row.subject in wanted
        ]


def load(path: Path = TABLE) -> Catalog:
    data = tomllib.loads(path.read_text())
    subjects = {
        name: Subject(name=name, **{**entry, "sides": tuple(entry.get("sides", BOTH))})
        for name, entry in data["subject"].items()
    }
    rows = {entry["id"]: Row(**entry) for entry in data["row"]}
    for row in rows.values():
        if row.subject not in subjects:
            raise CatalogError(f"row {row.id}: no subject {row.subject!r}")
    return Catalog(subjects, rows)
