# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the unit tests: a kvgpud in this process, with a fake worker."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.agent import BOOT_ID, World, agent_world

from kvgpu.host.control_frames import FEATURES, PROTOCOL_MAJOR, PROTOCOL_MINOR, Hello


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: a unix socket's path has 107 bytes, pytest-xdist's are longer."""
    with tempfile.TemporaryDirectory(prefix="kvgpu-") as name:
        yield Path(name)


@pytest.fixture
def fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A worker binary that speaks the protocol; $FAKE_WORKER chooses how it behaves."""
    script = Path(__file__).with_name("fake_worker.py")
    worker = tmp_path / "kvgpu-worker"
    worker.write_text(f'#!/bin/sh\nexec {sys.executable} -S {script} "$@"\n')
    worker.chmod(0o755)
    driver = tmp_path / "libcuda.so.1"
    driver.write_bytes(b"")
    monkeypatch.setenv("KVGPU_WORKER", str(worker))
    monkeypatch.setenv("KVGPU_SOFTWARE_GPU", str(driver))
    monkeypatch.delenv("FAKE_WORKER", raising=False)
    return worker


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An agent's surroundings, without the agent."""
    with agent_world(tmp_path) as made:
        yield made


@pytest.fixture
def welcomed(world: World) -> World:
    world.start_agent()
    assert world.host.accept() == Hello(
        PROTOCOL_MAJOR, PROTOCOL_MINOR, FEATURES, bytes.fromhex(BOOT_ID)
    )
    world.host.welcome()
    return world


@pytest.fixture
def reaped() -> Iterator[None]:
    """Leave no child: here the kvgpud that takes a worker up is the process that started it."""
    yield
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
