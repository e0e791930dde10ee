# SPDX-License-Identifier: Apache-2.0
"""Faults: the program sees what it would see natively, its neighbours and successors nothing."""

from __future__ import annotations

from framework.faults import NAMES, check_fault, check_infinite, neighbour
from framework.loopback import Loopback


def test_faults_are_as_natively_and_nobody_else_notices(host: Loopback) -> None:
    with neighbour(host, 15):
        differing = {name: check_fault(host, "software", name) for name in NAMES}
        assert not any(differing.values()), differing


def test_infinite_kernel_ends_with_its_program(host: Loopback) -> None:
    check_infinite(host)
