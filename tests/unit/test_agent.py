# SPDX-License-Identifier: Apache-2.0
"""The real kvgpu-agentd between real client processes and a host that is played here."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvgpu.host.control_frames import (
    Body,
    Close,
    Closed,
    Facts,
    Frame,
    Hello,
    Kick,
    Open,
    Opened,
    Ping,
    Pong,
    Query,
    Refused,
    StreamDecoder,
    Welcome,
    decode,
)

REPOSITORY = Path(__file__).resolve().parents[2]
REGION_BYTES = 1 << 20
SUPERBLOCK = struct.pack("<QHHIQ", 0x5550475651564B00, 0, 1, 0, REGION_BYTES)
BOOT_ID = "00112233445566778899aabbccddeeff"
WAIT_S = 10.0

# A CUDA process as the agent sees it: opens a session, reports, and lives until it is killed. With
# "fork" it leaves a child that holds the connection open.
CLIENT = """
import array, os, socket, struct, sys, time
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
body = struct.pack("<HHIQII16s", 0, 1, 0, 0x300000000000, 1, 1, b"client")
sock.send(struct.pack("<IHHII", 0x4347564B, 4, 0, len(body), 77) + body)
message, fds, _, _ = socket.recv_fds(sock, 8192, 4)
kind, ident = struct.unpack_from("<H", message, 4)[0], struct.unpack_from("<I", message, 12)[0]
session = struct.unpack_from("<I", message, 24)[0] if kind == 5 else 0
print(kind, ident, session, os.fstat(fds[0]).st_size if fds else 0, flush=True)
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
time.sleep(60)
"""


def agent_binary() -> Path:
    """The one that was built last, unless the environment names one."""
    if named := os.environ.get("KVGPU_AGENTD"):
        return Path(named)
    built = sorted(
        REPOSITORY.glob("build/*/guest/agent/kvgpu-agentd"), key=lambda p: p.stat().st_mtime
    )
    if not built:
        pytest.fail("kvgpu-agentd is not built: run `make build`")
    return built[-1]


class FakeHost:
    """kvgpud's end of the port."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(WAIT_S)
        self._frames: list[Frame] = []
        self.connection = socket.socket()

    def accept(self) -> Hello:
        """Take the agent's connection and return its HELLO."""
        self.connection.close()
        self.connection, _ = self._listener.accept()
        self._decoder = StreamDecoder("agent")
        self._frames.clear()
        hello = self.expect(Hello).body
        assert isinstance(hello, Hello)
        return hello

    def welcome(self) -> None:
        self.send(Welcome(0, 1, 0, REGION_BYTES, bytes(16)))

    def send(self, body: Body, frame_id: int = 0) -> None:
        self.connection.sendall(Frame(body, frame_id).encode())

    def open_session(self, session: int) -> Open:
        """Answer the next OPEN and return it."""
        frame = self.expect(Open)
        self.send(Opened(0, 1, 0, session, 0, 4096, 4096, REGION_BYTES), frame.id)
        assert isinstance(frame.body, Open)
        return frame.body

    def next_frame(self, timeout_s: float = WAIT_S) -> Frame | None:
        deadline = time.monotonic() + timeout_s
        while not self._frames:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self.connection], [], [], left_s)[0]:
                return None
            data = self.connection.recv(65536)
            assert data, "the agent hung up"
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def expect(self, body: type[Body]) -> Frame:
        frame = self.next_frame()
        assert frame is not None, f"no {body.__name__} came"
        assert isinstance(frame.body, body), frame
        return frame

    def close(self) -> None:
        self.connection.close()
        self._listener.close()


@dataclass
class World:
    host: FakeHost
    folder: Path
    start_agent: Callable[..., subprocess.Popen[str]]
    start_client: Callable[..., subprocess.Popen[str]]

    @property
    def socket_path(self) -> Path:
        return self.folder / "guest.sock"

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(WAIT_S)
        client.connect(str(self.socket_path))
        return client


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    region = tmp_path / "region"
    region.write_bytes(SUPERBLOCK.ljust(REGION_BYTES, b"\0"))
    host = FakeHost(tmp_path / "port")
    with contextlib.ExitStack() as stack:
        stack.callback(host.close)

        def start(*command: str | Path, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                pass_fds=pass_fds,
            )

            def stop() -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

            stack.callback(stop)
            return process

        def start_agent(stored: Mapping[str, int] | None = None) -> subprocess.Popen[str]:
            paths = {"region": region, "port": tmp_path / "port"}
            paths |= {"socket": tmp_path / "guest.sock", "state": tmp_path / "agent.state"}
            options = [f"--{name}={path}" for name, path in paths.items()]
            options.append(f"--boot-id={BOOT_ID}")
            if not stored:
                return start(agent_binary(), *options)
            # As a service manager does it: one descriptor, number 3, and who it is for.
            ((name, fd),) = stored.items()
            script = (
                f'exec 3<&{fd}; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={name}; exec "$@"'
            )
            return start("bash", "-c", script, "bash", agent_binary(), *options, pass_fds=(fd,))

        def start_client(*arguments: str) -> subprocess.Popen[str]:
            return start(sys.executable, "-c", CLIENT, tmp_path / "guest.sock", *arguments)

        yield World(host, tmp_path, start_agent, start_client)


@pytest.fixture
def welcomed(world: World) -> World:
    world.start_agent()
    assert world.host.accept() == Hello(0, 1, 0, bytes.fromhex(BOOT_ID))
    world.host.welcome()
    return world


def said(client: subprocess.Popen[str]) -> list[int]:
    """What a client process got: type, id, session, size of the passed descriptor's file."""
    assert client.stdout is not None
    return [int(word) for word in client.stdout.readline().split()]


def open_frame(number: int = 5) -> bytes:
    return Frame(Open(0, 1, 0, 1 << 45, 0, 0, b"test"), number).encode()


def test_open_is_answered_with_the_region(welcomed: World) -> None:
    client = welcomed.start_client()
    request = welcomed.host.open_session(9)
    assert said(client) == [Opened.TYPE, 77, 9, REGION_BYTES]
    assert request.pid == client.pid  # not the 1 that the client wrote
    assert request.uid == os.getuid()
    assert request.comm.startswith(b"client")


def test_killed_client_is_reported_within_two_seconds(welcomed: World) -> None:
    client = welcomed.start_client()
    welcomed.host.open_session(9)
    said(client)
    killed = time.monotonic()
    client.kill()
    assert welcomed.host.expect(Close).id == 9
    assert time.monotonic() - killed < 2


def test_forked_child_does_not_keep_the_session(welcomed: World) -> None:
    client = welcomed.start_client("fork")
    welcomed.host.open_session(9)
    said(client)
    client.kill()  # the child lives on and holds the connection
    assert welcomed.host.expect(Close).id == 9


def test_two_clients_with_the_same_request_number_get_their_own_session(welcomed: World) -> None:
    clients = [welcomed.start_client(), welcomed.start_client()]
    by_pid = {client.pid: client for client in clients}
    for session in (3, 4):
        pid = welcomed.host.open_session(session).pid
        assert said(by_pid[pid])[1:3] == [77, session]


def test_client_that_ends_before_opened_leaves_no_session(welcomed: World) -> None:
    client = welcomed.start_client()
    request = welcomed.host.expect(Open)
    client.kill()
    client.wait()
    time.sleep(0.2)  # the agent sees the end first
    welcomed.host.send(Opened(0, 1, 0, 9, 0, 4096, 4096, REGION_BYTES), request.id)
    assert welcomed.host.expect(Close).id == 9


def test_kick_passes_for_the_own_session_only(welcomed: World) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        welcomed.host.open_session(9)
        assert decode(client.recv(8192)).id == 5
        client.send(Frame(Kick(), 9).encode())
        assert welcomed.host.expect(Kick).id == 9
        client.send(Frame(Kick(), 10).encode())
        assert client.recv(8192) == b""  # thrown out
    assert welcomed.host.expect(Close).id == 9


@pytest.mark.parametrize("message", [b"x", open_frame()[:-1], Frame(Close(), 1).encode()])
def test_client_that_breaks_the_protocol_is_thrown_out(welcomed: World, message: bytes) -> None:
    with welcomed.connect() as client:
        client.send(message)
        assert client.recv(8192) == b""
    assert welcomed.host.next_frame(0.2) is None


def test_refusal_reaches_the_client(welcomed: World) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        request = welcomed.host.expect(Open)
        welcomed.host.send(Refused(2, "no memory left in the slice"), request.id)
        assert decode(client.recv(8192)) == Frame(Refused(2, "no memory left in the slice"), 5)


def test_host_ends_a_session(welcomed: World) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        welcomed.host.open_session(9)
        client.recv(8192)
        welcomed.host.send(Closed(999, "worker crashed"), 9)
        assert decode(client.recv(8192)) == Frame(Closed(999, "worker crashed"), 9)
    assert welcomed.host.next_frame(0.2) is None  # it has ended: nothing to close


def test_lost_host_ends_sessions_and_the_next_one_serves(welcomed: World) -> None:
    with welcomed.connect() as client, welcomed.connect() as waiting:
        client.send(open_frame())
        welcomed.host.open_session(9)
        client.recv(8192)
        waiting.send(open_frame())
        welcomed.host.expect(Open)  # left unanswered
        welcomed.host.connection.close()
        closed = decode(client.recv(8192))
        assert isinstance(closed.body, Closed)
        assert closed.id == 9
        welcomed.host.accept()
        welcomed.host.welcome()
        welcomed.host.open_session(1)  # the unanswered OPEN, asked again
        assert isinstance(decode(waiting.recv(8192)).body, Opened)


def test_open_waits_for_a_host_that_comes_later(world: World) -> None:
    world.start_agent()
    world.host.accept()  # not welcomed yet
    client = world.start_client()
    assert world.host.next_frame(0.5) is None
    world.host.welcome()
    world.host.open_session(9)
    assert said(client)[0] == Opened.TYPE


def test_version_refused_by_the_host_is_told_to_clients(world: World) -> None:
    world.start_agent()
    world.host.accept()
    world.host.send(Refused(803, "upgrade kvgpu-guest"))
    assert world.host.next_frame(0.2) is None
    with world.connect() as client:
        client.send(open_frame())
        assert decode(client.recv(8192)) == Frame(Refused(803, "upgrade kvgpu-guest"), 5)


def test_host_of_another_major_version_is_refused(world: World) -> None:
    world.start_agent()
    world.host.accept()
    world.host.send(Welcome(7, 0, 0, REGION_BYTES, bytes(16)))
    assert world.host.next_frame(0.2) is None
    with world.connect() as client:
        client.send(open_frame())
        answer = decode(client.recv(8192)).body
    assert isinstance(answer, Refused)
    assert answer.cuda_error == 803
    assert "upgrade the guest's" in answer.message


def test_facts_of_the_host_are_kept_for_whoever_asks(world: World) -> None:
    """A client learns the driver's version without a session; 0 while the host has not said it."""
    world.start_agent()
    world.host.accept()
    world.host.welcome()
    with world.connect() as early:
        early.send(Frame(Query(), 7).encode())
        assert decode(early.recv(8192)) == Frame(Facts(0, 0, 0, 0), 7)
    world.host.send(Facts(0, 2, 0, 12040))
    with world.connect() as client:
        client.send(open_frame())
        world.host.open_session(9)  # so the agent has read what came before
        decode(client.recv(8192))
        client.send(Frame(Query(), 8).encode())
        assert decode(client.recv(8192)) == Frame(Facts(0, 2, 0, 12040), 8)


def test_garbage_from_the_host_is_skipped(welcomed: World) -> None:
    welcomed.host.connection.sendall(os.urandom(5000).replace(b"K", b"k"))
    # A header with a length that no frame has, then a cut-off but well-formed beginning.
    welcomed.host.connection.sendall(struct.pack("<IHHII", 0x4347564B, 5, 0, 1 << 30, 1))
    welcomed.host.send(Ping(), 3)
    assert welcomed.host.expect(Pong).id == 3


@pytest.mark.parametrize(
    "block", [(REGION_BYTES, 4096), (0, REGION_BYTES + 1), ((1 << 64) - 4096, 8192)]
)
def test_block_outside_the_region_is_not_passed_on(welcomed: World, block: tuple[int, int]) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        request = welcomed.host.expect(Open)
        welcomed.host.send(Opened(0, 1, 0, 9, 0, *block, REGION_BYTES), request.id)
        assert isinstance(decode(client.recv(8192)).body, Refused)
    assert welcomed.host.expect(Close).id == 9


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


def test_idle_agent_uses_no_processor(welcomed: World) -> None:
    client = welcomed.start_client()  # a session is open, and nothing happens
    welcomed.host.open_session(9)
    said(client)
    pid = agent_pid(welcomed)
    ticks = cpu_ticks(pid)
    time.sleep(1)
    assert cpu_ticks(pid) - ticks <= 1


def agent_pid(world: World) -> int:
    """The peer of a connection to the agent's socket is whoever listens there."""
    with world.connect() as client:
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("<iII", peer)[0])


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_agent_without_a_device_refuses_at_once(world: World) -> None:
    (world.folder / "region").write_bytes(bytes(REGION_BYTES))  # no superblock
    world.start_agent()
    deadline = time.monotonic() + WAIT_S
    while not world.socket_path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with world.connect() as client:
        client.send(open_frame())
        answer = decode(client.recv(8192)).body
    assert isinstance(answer, Refused)
    assert answer.cuda_error == 100
