# SPDX-License-Identifier: Apache-2.0
"""Warnings about a peer that may be hostile: it must not be able to fill the host's log."""

from __future__ import annotations

import logging

from kvgpu.host.units import is_power_of_two


def plain(text: str) -> str:
    """Return `text` without what could pass for another line of a log."""
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text)


class Complaints:
    """Logs the 1st, 2nd, 4th, 8th ... complaint about `peer`, and counts the others."""

    def __init__(self, log: logging.Logger, peer: str) -> None:
        self._log = log
        self._peer = peer
        self._n_complaints = 0

    def add(self, what: object) -> None:
        self._n_complaints += 1
        if is_power_of_two(self._n_complaints):
            self._log.warning("%s: %s (%d so far)", self._peer, what, self._n_complaints)
