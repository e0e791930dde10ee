# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the unit tests: a kvgpud in this process, with a fake worker."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
