# SPDX-License-Identifier: Apache-2.0
"""`kvgpu run --transport stream` of another user: root works where that user cannot write."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from framework.kvgpud import kvgpud, run

from kvgpu.host import api_server
from kvgpu.host.errors import DaemonError
from kvgpu.host.ivshmem.region import Region
from kvgpu.host.messages import RunRequest
from kvgpu.host.units import MIB

pytestmark = pytest.mark.usefixtures("fake_worker", "reaped")
NOBODY = pwd.getpwnam("nobody").pw_uid
SOMEBODY = NOBODY - 1
ASKED = RunRequest(64 * MIB, "stream")


def works_as(uid: int, action: Callable[[], object]) -> bool:
    """Tell whether `uid`, with no group of ours, may do `action`."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            action()
            status = 0
        except PermissionError:
            status = 1
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1)
    return code == 0


def connect(path: Path, kind: int = socket.SOCK_SEQPACKET) -> None:
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(str(path))


def test_owner_gets_the_socket_and_cannot_write_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "_peer", lambda _: api_server.Peer(os.getpid(), NOBODY))
    tmp_path.chmod(0o711)

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            path = Path((await api.ask(ASKED))["socket"])
            folder = path.parent
            found = folder.stat()
            assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o711)
            assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (NOBODY, 0o600)
            planted = folder / "agent.state.new"
            assert not works_as(NOBODY, lambda: planted.symlink_to(tmp_path / "victim"))
            assert not works_as(NOBODY, path.unlink)
            assert not works_as(NOBODY, lambda: connect(folder / "port", socket.SOCK_STREAM))
            assert works_as(NOBODY, lambda: connect(path))
            assert not works_as(SOMEBODY, lambda: connect(path))
            api.close()
        assert not folder.exists()

    run(body)


def test_run_that_cannot_be_begun_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Region] = []
    make = Region.create_memfd

    def keep(*arguments: object) -> Region:
        made.append(make(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(Region, "create_memfd", keep)

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            (tmp_path / "run" / "stream-1").write_bytes(b"in the way")
            with pytest.raises(DaemonError, match="File exists"):
                await api.ask(ASKED)
            assert [region.fd for region in made] == [-1]

    run(body)
