# SPDX-License-Identifier: Apache-2.0
"""A client that breaks the protocol loses its session; nothing else happens."""

from __future__ import annotations

import os
import subprocess
from collections import Counter

import pytest
from framework.loopback import LOOPBACK, PROGRAMS, Loopback

RING_REASONS = {
    "length_zero": "record length out of range",
    "length_huge": "record length out of range",
    "length_over_limit": "record length out of range",
    "pad_in_the_middle": "record crosses the end of the ring",
    "event_credit_ahead": "credit outside of what was sent",
}
RECORD_REASON = "the guest broke the protocol in a record"


def attacks() -> list[str]:
    binary = LOOPBACK / "hostile_client"
    if not binary.exists():
        return ["hostile_client_is_not_built"]
    command = [str(binary), "--list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def endings(host: Loopback) -> list[str]:
    """Return the reasons for which sessions have ended, in the order of their logs."""
    lines = host.logs().splitlines()
    return [line.split("session ends: ")[1] for line in lines if "session ends: " in line]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("attack", attacks())
def test_hostile_client_loses_its_session_only(host: Loopback, attack: str) -> None:
    before = endings(host)
    host.check(LOOPBACK / "hostile_client", attack)
    reasons = Counter(endings(host)) - Counter(before)  # old logs go
    assert any(RING_REASONS.get(attack, RECORD_REASON) in reason for reason in reasons), reasons
    assert is_alive(host.kvgpud_pid)


def test_hostile_clients_disturb_no_running_session(host: Loopback) -> None:
    """Another session works on while sessions beside it are ended."""
    with host.start(PROGRAMS / "spin", "3") as beside:
        for attack in attacks()[:4]:
            host.check(LOOPBACK / "hostile_client", attack)
        output, errors = beside.communicate(timeout=60)
    assert beside.returncode == 0, output + errors
    host.check(PROGRAMS / "demo")
