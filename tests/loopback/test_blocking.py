# SPDX-License-Identifier: Apache-2.0
"""Work that waits, natively in the driver, stops nobody else (tests/gpu runs the cases, too)."""

from __future__ import annotations

import pytest
from framework.loopback import LOOPBACK, Loopback, case_filter, case_names

BLOCKING = [case for case in case_names() if case.startswith("blocking")]
CASES = [case for case in BLOCKING if "launches" in case]
PROGRESS = [case for case in BLOCKING if "progress" in case]


@pytest.mark.parametrize("case", CASES)
def test_launches_behind_a_waiting_stream(host: Loopback, case: str) -> None:
    assert "1 passed" in host.check(LOOPBACK / "driver_cases", case_filter(case))


def test_launches_cases_are_built() -> None:
    assert len(CASES) == 3


@pytest.mark.parametrize("case", PROGRESS)
def test_progress_beside_a_blocked_call(host: Loopback, case: str) -> None:
    assert "1 passed" in host.check(LOOPBACK / "driver_cases", case_filter(case))


def test_progress_cases_are_built() -> None:
    assert len(PROGRESS) == 6
