# SPDX-License-Identifier: Apache-2.0
"""Waiting for what comes soon, of processes whose speed is the machine's."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED_S = 20


def eventually(what: Callable[[], Any], limit_s: float = 10) -> bool:
    """Whether `what` becomes true in this time."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if what():
            return True
        time.sleep(0.02)
    return False


def _takes_clients(path: Path, kind: socket.SocketKind) -> bool:
    """Whether somebody listens at `path`: its file is there before anybody does."""
    with socket.socket(socket.AF_UNIX, kind) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def wait_for_listener(
    path: Path,
    process: subprocess.Popen[Any],
    kind: socket.SocketKind = socket.SOCK_STREAM,
    log: Path | None = None,
) -> None:
    """Return once `process` listens at `path`; AssertionError where it ends or takes too long."""

    def has_come() -> bool:
        return process.poll() is not None or _takes_clients(path, kind)

    came = eventually(has_come, STARTED_S)
    said = log.read_text() if log else ""
    assert came, f"nobody listens at {path}\n{said}"
    assert process.poll() is None, f"{process.args!r} ended with {process.returncode}\n{said}"
