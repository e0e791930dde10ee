# SPDX-License-Identifier: Apache-2.0
"""Speaks to kvgpud's API socket from a program that is not asynchronous."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from kvgpu.host.errors import DaemonError
from kvgpu.host.messages import (
    Request,
    SessionKillRequest,
    SessionListRequest,
    decode_reply,
    encode_request,
)

_TIMEOUT_S = 60.0  # the first answer may wait for the driver's inventory

Ask = Callable[[Request], dict[str, Any]]


class ApiClient:
    """A connection to kvgpud. Use it as a context manager."""

    def __init__(self, runtime_dir: Path) -> None:
        self.path = runtime_dir / "kvgpud.sock"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(_TIMEOUT_S)
        try:
            self._sock.connect(str(self.path))
        except OSError as error:
            self._sock.close()
            raise DaemonError(
                f"kvgpud cannot be reached at {self.path}: {error.strerror}",
                hint="start kvgpud, or become root or a member of the group kvgpu",
            ) from error
        self._lines = self._sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Request) -> dict[str, Any]:
        """Return the fields of kvgpud's reply; raise DaemonError if it refuses or is gone."""
        try:
            self._sock.sendall(encode_request(request))
            return decode_reply(self._lines.readline())
        except OSError as error:
            raise DaemonError(f"kvgpud did not answer: {error}", hint="see its log") from error

    def close(self) -> None:
        self._lines.close()
        self._sock.close()


def end_session(ask: Ask, session: int) -> bool:
    """End a session; return False if it has ended by itself. Raises DaemonError."""
    try:
        ask(SessionKillRequest(session))
    except DaemonError:
        if any(info["session"] == session for info in ask(SessionListRequest())["sessions"]):
            raise
        return False
    return True
