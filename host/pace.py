# SPDX-License-Identifier: Apache-2.0
"""How fast a peer that may be hostile is listened to: it must not keep a host's core busy."""

from __future__ import annotations

import time


class Pace:
    """Allows `burst` pieces at a time and `per_s` a second."""

    def __init__(self, burst: int, per_s: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._n_allowed = float(burst)
        self._counted_s = time.monotonic()

    def count(self, n_pieces: int) -> float:
        """Return how long, in s, nobody should listen now that `n_pieces` have come."""
        now_s = time.monotonic()
        gained = (now_s - self._counted_s) * self._per_s
        self._n_allowed = min(self._n_allowed + gained, self._burst) - n_pieces
        self._counted_s = now_s
        return max(0.0, -self._n_allowed / self._per_s)
