# SPDX-License-Identifier: Apache-2.0
"""The same cases and programs where guest and host share no memory: the byte-stream form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from framework.loopback import LOOPBACK, PROGRAMS, Loopback, case_filter, case_names, loopback


@pytest.fixture(scope="module")
def stream() -> Iterator[Loopback]:
    with loopback(KVGPU_TRANSPORT="stream") as running:
        running.limit_s = 280  # slow, correct
        yield running


def test_cases_are_built() -> None:
    assert len(case_names()) >= 20, f"{LOOPBACK}/driver_cases is missing or short: make build"


@pytest.mark.parametrize("case", case_names())
def test_case(stream: Loopback, case: str) -> None:
    output = stream.check(LOOPBACK / "driver_cases", case_filter(case))
    assert "1 passed" in output


@pytest.mark.parametrize("program", ["capture", "demo", "errors", "hostfunc", "memory", "printf"])
def test_program_finds_all_results_correct(stream: Loopback, program: str) -> None:
    assert stream.check(PROGRAMS / program).splitlines()[-1] == f"{program}: all results correct"
