# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/programs print on the software GPU what they printed on a GPU.

tests/gpu/run.sh record wrote tests/data/recorded/ there.
"""

from __future__ import annotations

import re

import pytest
from framework.loopback import PROGRAMS, ROOT, Loopback
from framework.recorded import RECORDED, differences, stable_lines

# These print how fast something was, run until they are stopped, or break rules on purpose.
NOT_RECORDED = {"bugs", "speed", "spin", "steady"}
SOURCES = {path.stem for path in (ROOT / "tests/programs").glob("*.cu")}


@pytest.mark.parametrize("program", sorted(SOURCES - NOT_RECORDED))
def test_same_as_on_a_gpu(host: Loopback, program: str) -> None:
    recorded = (RECORDED / f"{program}.txt").read_text()
    assert re.match(r"# .*, \d+\.\d+", recorded), "the first line names GPU and driver"
    assert len(stable_lines(recorded)) > 1
    found = differences(recorded, host.check(PROGRAMS / program))
    assert not found, "\n".join(found)


def test_nothing_else_is_recorded() -> None:
    assert {path.stem for path in RECORDED.glob("*.txt")} == SOURCES - NOT_RECORDED


@pytest.mark.parametrize(
    ("got", "differs"),
    [
        ("f (f32, 2 ulp): 3f800000 80000001 7fc00000", False),
        ("f (f32, 2 ulp): 3f800002 0 7fffffff", False),
        ("f (f32, 2 ulp): 3f800002 1 7fffffff", True),
        ("f (f32, 2 ulp): 3f800003 80000001 7fc00000", True),
        ("f (f32, 2 ulp): 3f800000 80000001 7f800000", True),
        ("f (f32, 2 ulp): 3f800000 80000001", True),
        ("f (f32, 3 ulp): 3f800000 80000001 7fc00000", True),
        ("sum: 1", True),
        ("", True),
    ],
)
def test_only_stated_tolerances_are_given(got: str, differs: bool) -> None:
    recorded = "# a GPU\nf (f32, 2 ulp): 3f800000 80000001 7fc00000"
    assert bool(differences(recorded, f"# another\n{got}")) == differs
