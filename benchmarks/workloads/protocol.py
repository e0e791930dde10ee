# SPDX-License-Identifier: Apache-2.0
"""What a workload is."""

from __future__ import annotations

from typing import Protocol

Figures = dict[str, tuple[float, str]]


class Workload(Protocol):
    """Made warm: whatever is compiled, chosen or captured has been by then."""

    def measure(self, effort: float) -> Figures: ...
