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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvgpu.host.control_frames import (
    Frame,
    Hello,
    Open,
    Opened,
    Sessions,
    StreamDecoder,
    Welcome,
)
from kvgpu.host.frame_body import Body

REPOSITORY = Path(__file__).resolve().parents[2]
REGION_BYTES = 1 << 20
SUPERBLOCK = struct.pack("<QHHIQ", 0x5550475651564B00, 0, 1, 0, REGION_BYTES)
BOOT_ID = "00112233445566778899aabbccddeeff"
WAIT_S = 10.0
GROUP = "users"  # kvgpu need not exist where tests run

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
        self.named: tuple[int, ...] | None = None  # the sessions the agent has said it has
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
            for frame in self._decoder.feed(data):
                if isinstance(frame.body, Sessions):
                    self.named = frame.body.numbers
                else:
                    self._frames.append(frame)
        return self._frames.pop(0)

    def expect(self, body: type[Body]) -> Frame:
        frame = self.next_frame()
        assert frame is not None, f"no {body.__name__} came"
        assert isinstance(frame.body, body), frame
        return frame

    def pause(self) -> None:
        """Take no connection from now on."""
        self._listener.close()

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


@contextmanager
def agent_world(tmp_path: Path) -> Iterator[World]:
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

        def start_agent(
            *more: str, stored: Mapping[str, int] | None = None, looks_for_region: bool = False
        ) -> subprocess.Popen[str]:
            paths = {} if looks_for_region else {"region": region}
            paths |= {"port": tmp_path / "port"}
            paths |= {"socket": tmp_path / "guest.sock", "state": tmp_path / "agent.state"}
            options = [*more, *(f"--{name}={path}" for name, path in paths.items())]
            options += [f"--boot-id={BOOT_ID}", f"--group={GROUP}"]
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


def said(client: subprocess.Popen[str]) -> list[int]:
    """What a client process got: type, id, session, size of the passed descriptor's file."""
    assert client.stdout is not None
    return [int(word) for word in client.stdout.readline().split()]


def open_frame(number: int = 5, visible: bytes | None = None) -> bytes:
    return Frame(Open(0, 1, 0, 1 << 45, 0, 0, b"test", visible), number).encode()
