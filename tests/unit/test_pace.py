# SPDX-License-Identifier: Apache-2.0
"""How fast a hostile peer is listened to, however it spreads what it sends."""

from __future__ import annotations

import time

import pytest

from kvgpu.host.pace import Pace


@pytest.mark.parametrize("at_once", [1, 50, 3000])
def test_pace_is_the_same_in_small_parts(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    pace = Pace(64, 5000)
    for _ in range(3000 // at_once):
        now_s += pace.count(at_once)
    assert now_s - 100 == pytest.approx((3000 - 64) / 5000, rel=0.01)
    now_s += 10
    assert pace.count(64) == 0  # a pause allows a burst again, and no more than one
    assert pace.count(50) == pytest.approx(50 / 5000)
