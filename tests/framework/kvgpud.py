# SPDX-License-Identifier: Apache-2.0
"""kvgpud in this process, and those it talks to: a local program, QEMU with an agent behind it."""

from __future__ import annotations

import array
import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from kvgpu.host import control_frames as cf
from kvgpu.host.config import HostConfig
from kvgpu.host.control_frames import Frame
from kvgpu.host.domain_xml import Device, Machine, Slices, make_domain
from kvgpu.host.ivshmem.region import region_path
from kvgpu.host.kvgpud import Daemon
from kvgpu.host.messages import (
    HookRequest,
    Request,
    RunRequest,
    SessionListRequest,
    decode_reply,
    encode_request,
)
from kvgpu.host.units import GIB, MIB

OPEN = cf.Open(cf.PROTOCOL_MAJOR, cf.PROTOCOL_MINOR, 0, 0x300000000000, 1, 2, b"vectoradd")


class Api:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: Request) -> dict[str, Any]:
        self._writer.write(encode_request(request))
        return decode_reply(await self._reader.readline())

    async def sessions(self) -> list[dict[str, Any]]:
        sessions: list[dict[str, Any]] = (await self.ask(SessionListRequest()))["sessions"]
        return sessions

    def close(self) -> None:
        self._writer.close()


class Kvgpud:
    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir

    async def api(self) -> Api:
        path = str(self.runtime_dir / "kvgpud.sock")
        return Api(*await asyncio.open_unix_connection(path, limit=4 << 20))


@asynccontextmanager
async def kvgpud(
    runtime_dir: Path, *, keep_sessions_s: int = 0, **config: Any
) -> AsyncIterator[Kvgpud]:
    """Run a kvgpud; with `keep_sessions_s` its sessions outlive it."""
    stop = asyncio.Event()
    # No events of the libvirt that may run here: its event loop is one for the whole process.
    usual: dict[str, Any] = {"driver": "software", "jail": False, "libvirt_uri": ""}
    usual["prestarted_workers"] = 0
    settings = HostConfig(keep_sessions_s=keep_sessions_s, **(usual | config))
    task = asyncio.create_task(Daemon(settings, runtime_dir).run(stop))
    while not (runtime_dir / "kvgpud.sock").exists():
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    try:
        yield Kvgpud(runtime_dir)
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


def run(body: Callable[[], Coroutine[Any, Any, None]], limit_s: float = 30) -> None:
    asyncio.run(asyncio.wait_for(body(), limit_s))


class Client:
    """What libcuda.so.1 does in a program under `kvgpu run`."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(path)
        self.sock.setblocking(False)

    def send(self, frame: Frame) -> None:
        self.sock.send(frame.encode())

    async def receive(self) -> tuple[Frame, list[int]]:
        while True:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(8192, 256)
                break
            except BlockingIOError:
                await asyncio.sleep(0.005)
        fds = array.array("i")
        for _, _, raw in ancillary:
            fds.frombytes(raw)
        assert data, "kvgpud hung up"
        return cf.decode(data), list(fds)

    async def open(self, request: cf.Open = OPEN) -> tuple[cf.Opened, list[int]]:
        self.send(Frame(request, 7))
        frame, fds = await self.receive()
        assert frame.id == 7
        assert isinstance(frame.body, cf.Opened), frame
        return frame.body, fds


async def gone(api: Api, limit_s: float = 2.0) -> float:
    """Wait until kvgpud has no session; return how long that took, in seconds."""
    begin_s = time.monotonic()
    while await api.sessions():
        assert time.monotonic() - begin_s < limit_s, "sessions were left"
        await asyncio.sleep(0.02)
    return time.monotonic() - begin_s


async def open_run(api: Api, pinned_bytes: int = 64 * MIB) -> str:
    path: str = (await api.ask(RunRequest(pinned_bytes)))["socket"]
    return path


class FakeQemu:
    def __init__(
        self, runtime_dir: Path, device: Device = Device.PLAIN, pinned_bytes: int = 64 * MIB
    ) -> None:
        self.uuid = uuid4()
        self.path = runtime_dir / "vm" / f"{self.uuid}.sock"
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        machine = Machine("vm1", self.uuid, GIB, 1, kvm=False)
        slices = Slices(GIB, 25, pinned_bytes)
        self.domain_xml = make_domain(machine, slices, str(runtime_dir), device)
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()

    def hook(self, operation: str) -> HookRequest:
        return HookRequest("vm1", operation, self.domain_xml)

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._connected.set()
        decoder = cf.StreamDecoder("kvgpud")
        while data := await reader.read(4096):
            for frame in decoder.feed(data):
                if not isinstance(frame.body, cf.Ping):
                    self.frames.put_nowait(frame)
        if self._writer is writer:  # the next kvgpud may have come before this one's end was seen
            self._connected.clear()
        writer.close()

    async def say(self, *frames: Frame) -> None:
        await self.write(b"".join(frame.encode() for frame in frames))

    async def write(self, data: bytes) -> None:
        await self._connected.wait()
        assert self._writer
        self._writer.write(data)
        await self._writer.drain()

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def stop_reading(self) -> None:
        assert self._writer
        transport = self._writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    async def hello(self, boot_id: bytes) -> cf.Welcome:
        await self.say(Frame(cf.Hello(cf.PROTOCOL_MAJOR, cf.PROTOCOL_MINOR, 0, boot_id)))
        body = (await self.frames.get()).body
        while not isinstance(body, cf.Welcome):
            body = (await self.frames.get()).body
        facts = (await self.frames.get()).body
        assert isinstance(facts, cf.Facts), facts
        assert facts.driver_version == 13000  # as fake_worker.py has it
        return body

    async def open(self, request: cf.Open = OPEN) -> cf.Opened:
        await self.say(Frame(request, 11))
        frame = await self.frames.get()
        while isinstance(frame.body, cf.Closed):  # of an earlier session
            frame = await self.frames.get()
        assert frame.id == 11
        assert isinstance(frame.body, cf.Opened), frame
        return frame.body

    def die(self) -> None:
        assert self._writer
        self._server.close()
        self._writer.transport.abort()
        self.path.unlink()


@asynccontextmanager
async def vm(daemon: Kvgpud, api: Api, device: Device = Device.PLAIN) -> AsyncIterator[FakeQemu]:
    qemu = FakeQemu(daemon.runtime_dir, device)
    try:
        await api.ask(qemu.hook("prepare"))
        await qemu.start()
        await api.ask(qemu.hook("started"))
        yield qemu
    finally:
        region_path(qemu.uuid).unlink(missing_ok=True)
