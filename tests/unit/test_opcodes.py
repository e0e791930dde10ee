# SPDX-License-Identifier: Apache-2.0
"""Opcodes are append-only: what a released guest says must never come to mean something else."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Opcode, name; a line is never changed or removed. A line "# protocol 0.N" begins what N added.
RECORDED = ROOT / "tests/data/opcodes.tsv"
EXPORTED = ROOT / "tests/data/names-cuda13.txt"
CLASSES = {"local", "async", "sync", "completion", "bulk", "callback"}


def rows() -> dict[str, dict[str, object]]:
    """Return the served rows, and `control`."""
    table: dict[str, dict[str, object]] = tomllib.loads((ROOT / "protocol/api.toml").read_text())
    return {name: row for name, row in table.items() if name not in ("reasons", "refused", "twins")}


def opcodes() -> dict[str, int]:
    """Map names to opcodes, of entry points and of the records that are none."""
    table = rows()
    control = table.pop("control")
    named = {name: row["opcode"] for name, row in table.items() if "opcode" in row}
    named |= {name: row["opcode"] for name, row in control.items() if isinstance(row, dict)}
    return {name: opcode for name, opcode in named.items() if isinstance(opcode, int)}


def recorded() -> dict[str, int]:
    text = RECORDED.read_text()
    lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return {name: int(opcode) for opcode, name in lines}


def test_no_opcode_is_used_twice() -> None:
    values = list(opcodes().values())
    assert len(values) > 20
    assert sorted({value for value in values if values.count(value) > 1}) == []


def test_recorded_opcodes_keep_their_meaning() -> None:
    now = opcodes()
    assert {name: now.get(name) for name in recorded()} == recorded()


def test_new_opcodes_are_recorded() -> None:
    """A new row of api.toml adds a line to tests/data/opcodes.tsv, in the same commit."""
    new = {name: opcode for name, opcode in opcodes().items() if name not in recorded()}
    assert new == {}, "append to tests/data/opcodes.tsv: " + ", ".join(
        f"{opcode}<TAB>{name}" for name, opcode in sorted(new.items(), key=lambda item: item[1])
    )


def test_rows_name_exported_entry_points_and_a_known_class() -> None:
    exported = set(EXPORTED.read_text().split())
    table = rows()
    table.pop("control")
    assert sorted(set(table) - exported) == []
    assert {name for name, row in table.items() if row.get("class") not in CLASSES} == set()
