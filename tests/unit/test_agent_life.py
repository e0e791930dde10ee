# SPDX-License-Identifier: Apache-2.0
"""kvgpu-agentd: who may connect, and what it keeps while it, its clients or the host are away."""

from __future__ import annotations

import grp
import os
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from framework.agent import GROUP, WAIT_S, World, open_frame, said

from kvgpu.host.control_frames import (
    Close,
    Closed,
    Frame,
    Kick,
    Open,
    Opened,
    decode,
)

ENDED_OFFSET = 256  # of HostPage::ended; beat lies one cache line behind

# It asks for a sign of life and says whether one came.
CLIENT_THROWN_OUT = """
import socket, struct, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
try:
    sock.send(struct.pack("<IHHII", 0x4347564B, 9, 0, 0, 1))
    print("answered" if sock.recv(8192) else "thrown out")
except OSError:
    print("thrown out")
"""


def test_sessions_outlive_a_lost_host_and_the_next_one_hears_of_them(welcomed: World) -> None:
    with welcomed.connect() as client, welcomed.connect() as waiting:
        client.send(open_frame())
        welcomed.host.open_session(9)
        client.recv(8192)
        waiting.send(open_frame())
        welcomed.host.expect(Open)  # left unanswered
        welcomed.host.connection.close()
        welcomed.host.accept()
        welcomed.host.welcome()
        assert welcomed.host.expect(Kick).id == 9  # one may have been lost
        assert welcomed.host.named == (9,)
        welcomed.host.open_session(1)  # the unanswered OPEN, asked again
        assert isinstance(decode(waiting.recv(8192)).body, Opened)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):  # it has not noticed anything
            client.recv(8192)


def test_deaths_while_the_host_is_away_are_told_to_the_next_one(welcomed: World) -> None:
    dying = welcomed.start_client()
    welcomed.host.open_session(8)
    said(dying)
    client = welcomed.connect()
    client.send(open_frame())
    welcomed.host.open_session(9)
    client.recv(8192)
    welcomed.host.connection.close()
    dying.kill()
    dying.wait()
    client.close()
    time.sleep(0.2)  # the agent sees both ends first
    welcomed.host.accept()
    welcomed.host.welcome()
    assert {welcomed.host.expect(Close).id, welcomed.host.expect(Close).id} == {8, 9}
    assert welcomed.host.named == ()


def set_worker(world: World, beat: int, ended: int) -> None:
    """Write what the worker of the block at 4096 says of itself (layout.h, HostPage)."""
    with (world.folder / "region").open("r+b") as region:
        region.seek(4096 + ENDED_OFFSET)
        region.write(struct.pack("<Q56xQ", ended, beat))


@pytest.mark.parametrize("ended", [0, 1])
def test_death_of_a_worker_is_noticed_while_the_host_is_away(welcomed: World, ended: int) -> None:
    set_worker(welcomed, 5, 0)
    with welcomed.connect() as client:
        client.settimeout(20)
        client.send(open_frame())
        welcomed.host.open_session(9)
        client.recv(8192)
        welcomed.host.connection.close()
        welcomed.host.accept()  # but no WELCOME: the next kvgpud does not answer yet
        welcomed.host.connection.close()
        welcomed.host.pause()
        begin_s = time.monotonic()
        set_worker(welcomed, 6, ended)
        closed = decode(client.recv(8192))
        assert isinstance(closed.body, Closed)
        assert (closed.id, closed.body.cuda_error) == (9, 999)
        assert time.monotonic() - begin_s < (3 if ended else 16)


def as_user(uid: int, groups: list[int]) -> Callable[[], None]:
    def change() -> None:
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    return change


CONNECT = "import socket, sys; socket.socket(1, socket.SOCK_SEQPACKET).connect(sys.argv[1])"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("member", [True, False])
def test_group_may_connect_and_nobody_else(welcomed: World, member: bool) -> None:
    gid = grp.getgrnam(GROUP).gr_gid
    for folder in (welcomed.folder, *welcomed.folder.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o001)
    status = welcomed.socket_path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o660, 0, gid)
    command = ["/usr/bin/python3", "-c", CONNECT, str(welcomed.socket_path)]
    done = subprocess.run(
        command,
        preexec_fn=as_user(4242, [gid] if member else []),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert (done.returncode == 0) == member, done.stderr
    assert ("PermissionError" in done.stderr) != member


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("member", [True, False])
def test_credentials_are_checked_beside_the_socket_s_mode(welcomed: World, member: bool) -> None:
    gid = grp.getgrnam(GROUP).gr_gid
    welcomed.socket_path.chmod(0o666)
    for folder in (welcomed.folder, *welcomed.folder.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o001)
    done = subprocess.run(
        ["/usr/bin/python3", "-c", CLIENT_THROWN_OUT, str(welcomed.socket_path)],
        preexec_fn=as_user(4242, [gid] if member else []),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    assert done.stdout.split() == (["answered"] if member else ["thrown", "out"])


def test_restarted_agent_watches_the_old_processes(world: World) -> None:
    agent = world.start_agent()
    world.host.accept()
    world.host.welcome()
    living, ending = world.start_client(), world.start_client()
    sessions = {world.host.open_session(number).pid: number for number in (3, 4)}
    said(living)
    said(ending)
    agent.kill()
    agent.wait()
    ending.kill()
    ending.wait()
    world.start_agent()
    world.host.accept()
    world.host.welcome()
    assert world.host.expect(Close).id == sessions[ending.pid]
    assert world.host.expect(Kick).id == sessions[living.pid]
    living.kill()
    assert world.host.expect(Close).id == sessions[living.pid]


def test_restarted_agent_gets_connections_back_from_the_service_manager(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client,
    ):
        client.settimeout(WAIT_S)
        manager.settimeout(WAIT_S)
        manager.bind(str(world.folder / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(world.folder / "notify"))
        agent = world.start_agent()
        assert manager.recv(4096) == b"READY=1"
        world.host.accept()
        world.host.welcome()
        client.connect(str(world.socket_path))
        client.send(open_frame())
        world.host.open_session(9)
        client.recv(8192)
        state, fds, _, _ = socket.recv_fds(manager, 4096, 1)
        assert state == b"FDSTORE=1\nFDNAME=session-9"
        agent.kill()
        agent.wait()
        world.start_agent(stored={"session-9": fds[0]})
        os.close(fds[0])
        world.host.accept()
        world.host.welcome()
        assert world.host.expect(Kick).id == 9  # the agent's own
        client.send(Frame(Kick(), 9).encode())
        assert world.host.expect(Kick).id == 9
    assert world.host.expect(Close).id == 9
