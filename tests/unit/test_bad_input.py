# SPDX-License-Identifier: Apache-2.0
"""What an administrator may do wrong with kvgpud itself: each message says what to do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from framework.kvgpud import kvgpud, run

from kvgpu.host.check import check_permissions
from kvgpu.host.client import ApiClient
from kvgpu.host.config import HostConfig
from kvgpu.host.errors import KvgpuError
from kvgpu.host.kvgpud import Daemon
from kvgpu.host.messages import HostStatusRequest, Request, SessionKillRequest

pytestmark = pytest.mark.usefixtures("fake_worker")
NOBODY = 65534


def as_nobody(body: Callable[[], str]) -> str:
    """Return what `body` returns in a child process that has neither root's rights nor a group."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write_fd, body().encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def refusal(runtime_dir: Path, request: Request) -> str:
    try:
        with ApiClient(runtime_dir) as api:
            api.ask(request)
    except KvgpuError as error:
        return str(error)
    return "no error"


def test_wrong_group(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path):
            said = as_nobody(lambda: refusal(tmp_path, HostStatusRequest()))
            assert "cannot be reached" in said
            assert "Permission denied" in said
            assert "member of the group kvgpu" in said
            to_do = as_nobody(lambda: check_permissions(tmp_path).to_do)
            assert to_do.startswith("sudo adduser nobody kvgpu")

    tmp_path.chmod(0o755)
    run(body)


def test_member_of_the_group_may_look_but_not_kill(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            await api.ask(HostStatusRequest())
            (tmp_path / "kvgpud.sock").chmod(0o666)  # as for a member
            pid = os.fork()
            if pid == 0:  # kvgpud answers in the parent, which must not wait for the child
                os.setuid(NOBODY)
                said = refusal(tmp_path, SessionKillRequest(1))
                os._exit(0 if said == "only root may do that (use sudo)" else 1)
            while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
                await api.sessions()
            assert ended == (pid, 0)

    tmp_path.chmod(0o755)
    run(body)


def kvgpud_in_vain(runtime_dir: Path) -> subprocess.CompletedProcess[str]:
    """Start one that is to end at once."""
    return subprocess.run(
        [
            *(sys.executable, "-P", "-m", "kvgpu.host.kvgpud", "--no-jail"),
            *("--driver", "software", "--runtime-dir", str(runtime_dir)),
        ],
        capture_output=True,
        text=True,
        timeout=20,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )


def test_second_daemon(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            second = kvgpud_in_vain(tmp_path)
            assert second.returncode == 1
            assert second.stderr.splitlines()[-1] == (
                f"kvgpud: a kvgpud serves {tmp_path} already "
                "(stop it, or choose another --runtime-dir)"
            )
            assert await (await daemon.api()).sessions() == []  # the first one goes on

    run(body)


def test_second_daemon_while_the_first_one_does_not_listen(tmp_path: Path) -> None:
    """It still looks for what an earlier one left, or stops: its workers are not to be had."""

    async def body() -> None:
        stop = asyncio.Event()
        settings = HostConfig(driver="software", jail=False, libvirt_uri="", prestarted_workers=0)
        first = Daemon(settings, tmp_path)
        assert not (tmp_path / "kvgpud.sock").exists()
        second = kvgpud_in_vain(tmp_path)
        assert second.returncode == 1
        assert f"a kvgpud serves {tmp_path} already" in second.stderr
        stop.set()
        await first.run(stop)
        async with kvgpud(tmp_path):
            pass

    run(body)


def test_runtime_folder_that_cannot_be_written(tmp_path: Path) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    result = kvgpud_in_vain(not_a_folder)
    assert result.returncode == 1
    assert str(not_a_folder) in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
