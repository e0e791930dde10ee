# SPDX-License-Identifier: Apache-2.0
"""`kvgpu session kill --all`: what ends by itself is no error, what is refused is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvgpu.host import cli_session
from kvgpu.host.cli import app
from kvgpu.host.errors import DaemonError
from kvgpu.host.messages import Request, SessionKillRequest


def kill_all(monkeypatch: pytest.MonkeyPatch, *, may: bool) -> Result:
    """Kill sessions 1 and 2; 2 has ended by itself when it is its turn."""
    sessions = {1, 2}

    def ask(_: Path, request: Request) -> dict[str, Any]:
        if isinstance(request, SessionKillRequest):
            if not may:
                raise DaemonError("only root may do that", hint="use sudo")
            was_there = request.session in sessions
            sessions.clear()
            if not was_there:
                raise DaemonError(f"no session {request.session}")
        return {"sessions": [{"session": number} for number in sorted(sessions)]}

    monkeypatch.setattr(cli_session, "ask", ask)
    return CliRunner().invoke(app, ["session", "kill", "--all", "--json"])


def test_session_that_has_ended_by_itself_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = kill_all(monkeypatch, may=True)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"killed": [1]}


def test_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = kill_all(monkeypatch, may=False)
    assert isinstance(result.exception, DaemonError)
    assert result.exception.message == "only root may do that"
    assert result.exit_code == 1
