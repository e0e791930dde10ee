# SPDX-License-Identifier: Apache-2.0
"""Every entry point that is served is reached by a differential test, with success and an error.

tests/data/coverage.json says what was reached on which GPU, the software one among them: after a
new row run tests/gpu/coverage.py. tests/data/unreachable.toml says what cannot be reached, and why.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvgpu.protocol.generator.emit_proof import SOFTWARE, is_covered

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
SPECIAL_TABLES = {"control", "reasons", "refused", "twins"}


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    return tomllib.loads((ROOT / "protocol/api.toml").read_text())


@pytest.fixture(scope="module")
def marks() -> dict[str, dict[str, str]]:
    return tomllib.loads((DATA / "unreachable.toml").read_text())


@pytest.fixture(scope="module")
def reached() -> dict[str, dict[str, str]]:
    """What was reached on any GPU."""
    found: dict[str, dict[str, str]] = {}
    for run in json.loads((DATA / "coverage.json").read_text()).values():
        for name, kinds in run["reached"].items():
            found[name] = found.get(name, {}) | kinds
    return found


def test_every_served_row_is_reached(
    api: dict[str, Any], marks: dict[str, Any], reached: dict[str, Any]
) -> None:
    served = set(api) - SPECIAL_TABLES
    assert len(served) > 400
    excused = marks["never"] | marks["elsewhere"]
    missing = {
        name: reached.get(name, {}) for name in served if not is_covered(name, reached, excused)
    }
    assert missing == {}, "give them arguments in tests/differential, run tests/gpu/coverage.py"


def test_marks_are_true(api: dict[str, Any], marks: dict[str, Any]) -> None:
    assert set(marks) == {"beyond", "never", "elsewhere"}
    assert set(marks["beyond"]) <= set(api["reasons"])
    names = {*marks["never"], *marks["elsewhere"]}
    assert names <= {*api, *api["refused"]}
    runs = json.loads((DATA / "coverage.json").read_text())
    for gpu in runs.keys() - {SOFTWARE}:  # the software GPU takes some calls that no GPU takes
        succeeded = runs[gpu]["reached"]
        assert {n for n in marks["never"] if "success" in succeeded.get(n, {})} == set(), gpu
    assert all(
        len(why) > 15 for section in ("never", "elsewhere") for why in marks[section].values()
    )
