# SPDX-License-Identifier: Apache-2.0
"""What is missing or broken around a program: a defined error, and a message with advice."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.loopback import BUILD
from framework.waiting import wait_for_listener

NO_DEVICE = 100
INIT = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"


def initialise(path: Path | None) -> tuple[int, str]:
    """Return what cuInit says in a program, and the program's log."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(BUILD / "guest/libcuda")}
    environment.pop("KVGPU_SOCKET", None)
    if path:
        environment["KVGPU_SOCKET"] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", INIT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return int(done.stdout), done.stderr


def test_agent_not_running() -> None:
    assert not Path("/run/kvgpu/guest.sock").exists(), "this machine runs an agent"
    result, log = initialise(None)
    assert result == NO_DEVICE
    assert "cannot reach /run/kvgpu/guest.sock: No such file or directory" in log
    assert "systemctl start kvgpu-agentd" in log


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvgpu-") as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot open the shared region"),
        (b"", "is empty: stop and start this VM"),
        (bytes(1 << 20), "is not kvgpu's region: is kvgpud running on the host?"),
    ],
)
def test_region_unreadable(folder: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (folder / "region").write_bytes(content)
    names = ("region", "port", "socket", "state")
    agent = subprocess.Popen(
        [BUILD / "guest/agent/kvgpu-agentd", *(f"--{name}={folder / name}" for name in names)]
    )
    try:
        wait_for_listener(folder / "socket", agent, socket.SOCK_SEQPACKET)
        result, log = initialise(folder / "socket")
    finally:
        agent.terminate()
        agent.wait(10)
    assert result == NO_DEVICE
    assert message in log, log
