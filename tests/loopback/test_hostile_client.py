# SPDX-License-Identifier: Apache-2.0
"""A client that breaks the protocol loses its session; nothing else happens."""

from __future__ import annotations

import subprocess

import pytest
from framework.loopback import LOOPBACK, PROGRAMS, Loopback


def attacks() -> list[str]:
    binary = LOOPBACK / "hostile_client"
    if not binary.exists():
        return ["hostile_client_is_not_built"]
    command = [str(binary), "--list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("attack", attacks())
def test_hostile_client_loses_its_session_only(host: Loopback, attack: str) -> None:
    host.check(LOOPBACK / "hostile_client", attack)
    assert "session ends" in host.logs()


def test_hostile_clients_leave_the_daemon_well(host: Loopback) -> None:
    for attack in attacks()[:3]:
        host.check(LOOPBACK / "hostile_client", attack)
    assert "all results correct" in host.check(PROGRAMS / "demo")


def test_unknown_endpoint_ends_the_session(host: Loopback) -> None:
    host.check(LOOPBACK / "hostile_client", "unknown_endpoint")
