# SPDX-License-Identifier: Apache-2.0
"""kvgpud as systemd and an administrator see it: readiness, stop, its socket, a second one."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import HostStatusRequest, SessionListRequest

ROOT = Path(__file__).parents[2]
LIMIT_S = 20


def start(runtime_dir: Path, **variables: str) -> subprocess.Popen[str]:
    config = runtime_dir / "host.toml"
    config.write_text('jail = false\nlibvirt_uri = ""\nprestarted_workers = 0\n')
    module = [sys.executable, "-m", "kvgpu.host.kvgpud", "--runtime-dir", str(runtime_dir)]
    return subprocess.Popen(
        [*module, "--driver", "software", "--config", str(config)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "packaging/python"), **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    """What systemd listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(LIMIT_S)
        yield sock


@pytest.fixture
def kvgpud(
    tmp_path: Path, fake_worker: Path, notified: socket.socket
) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path, NOTIFY_SOCKET=str(tmp_path / "notify"))
    try:
        assert notified.recv(100) == b"READY=1"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ready_means_that_it_answers_and_stopping_comes_before_the_end(
    tmp_path: Path, kvgpud: subprocess.Popen[str], notified: socket.socket
) -> None:
    with ApiClient(tmp_path) as api:
        assert api.ask(HostStatusRequest())["pid"] == kvgpud.pid
    kvgpud.send_signal(signal.SIGTERM)
    assert notified.recv(100) == b"STOPPING=1"
    assert kvgpud.wait(LIMIT_S) == 0
    assert not (tmp_path / "kvgpud.sock").exists()


@pytest.mark.usefixtures("kvgpud")
def test_socket_is_for_its_user_and_group_only(tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "kvgpud.sock").stat().st_mode) == 0o660


@pytest.mark.usefixtures("kvgpud")
def test_second_kvgpud_on_the_same_folder_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    second = start(tmp_path)
    _, errors = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 1
    assert f"a kvgpud serves {tmp_path} already" in errors
    assert "--runtime-dir" in errors
    with ApiClient(tmp_path) as api:
        assert api.ask(SessionListRequest())["sessions"] == []


@pytest.mark.usefixtures("kvgpud")
@pytest.mark.parametrize("line", [b"no json\n", b'{"op": "nothing"}\n', b"[]\n", b'{"op": 3}\n'])
def test_request_that_is_none_is_an_error_and_kvgpud_goes_on(tmp_path: Path, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(LIMIT_S)
        sock.connect(str(tmp_path / "kvgpud.sock"))
        sock.send(line)
        reply = json.loads(sock.makefile().readline())
        assert reply["ok"] is False
        assert reply["error"]
    with ApiClient(tmp_path) as api:
        assert api.ask(HostStatusRequest())["n_sessions"] == 0
