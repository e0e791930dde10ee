# SPDX-License-Identifier: Apache-2.0
"""Random programs of driver API calls give the same natively and through kvgpu."""

from __future__ import annotations

from differential.shrinking import check
from framework.loopback import Loopback

N_PROGRAMS = 25  # tests/gpu/run.sh stateful makes thousands


def test_random_programs_give_what_they_give_natively(host: Loopback) -> None:
    assert check(host, "software", N_PROGRAMS).done["programs"] >= N_PROGRAMS
