# SPDX-License-Identifier: Apache-2.0
"""Random programs as hypothesis makes them, so that it can shrink what it finds.

python -P tests/differential/shrinking.py N [DRIVER]: N programs at most, natively and through
kvgpu, until one differs; then the smallest one that does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.pair import Count, Pair
from differential.sides import Call
from differential.steps import STEPS, UNCAPTURED, Step, program
from framework.loopback import Loopback, loopback


@st.composite
def programs(draw: Any, steps: list[Step]) -> list[Call]:
    """A program of these steps."""
    return program(lambda low, high: draw(st.integers(low, high)), steps)


def check(host: Loopback, driver: str, n: int) -> Count:
    """Until a program differs; AssertionError with the smallest that still does."""
    pair, count = Pair(host, driver), Count()

    @settings(
        max_examples=n,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(STEPS if driver == "nvidia" else UNCAPTURED))
    def each(made: list[Call]) -> None:
        lines = pair.compare(made, count)
        assert not lines, "\n".join([*lines, json.dumps(made)])

    try:
        each()
    finally:
        pair.close()
    return count


if __name__ == "__main__":
    chosen = sys.argv[2] if len(sys.argv) > 2 else "software"
    with loopback(driver=chosen, jail=False) as running:
        print(check(running, chosen, int(sys.argv[1])).done)
