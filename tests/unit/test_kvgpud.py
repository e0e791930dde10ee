# SPDX-License-Identifier: Apache-2.0
"""kvgpud as its clients see it: local programs, VMs (a socket in QEMU's place), hook and API."""

from __future__ import annotations

import array
import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from kvgpu.host import control_frames as cf
from kvgpu.host.config import HostConfig
from kvgpu.host.control_frames import Frame
from kvgpu.host.domain_xml import Machine, Slices, make_domain
from kvgpu.host.errors import DaemonError
from kvgpu.host.ivshmem.allocator import BLOCK_BYTES
from kvgpu.host.ivshmem.region import region_path
from kvgpu.host.kvgpud import Daemon
from kvgpu.host.messages import (
    HookRequest,
    HostStatusRequest,
    Request,
    RunRequest,
    SessionKillRequest,
    SessionListRequest,
    VmListRequest,
    decode_reply,
    encode_request,
)
from kvgpu.host.units import GIB, MIB

pytestmark = pytest.mark.usefixtures("fake_worker")

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
async def kvgpud(runtime_dir: Path, **config: Any) -> AsyncIterator[Kvgpud]:
    stop = asyncio.Event()
    settings = HostConfig(driver="software", jail=False, **config)
    task = asyncio.create_task(Daemon(settings, runtime_dir).run(stop))
    while not (runtime_dir / "kvgpud.sock").exists():
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    try:
        yield Kvgpud(runtime_dir)
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 30))


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


def test_local_client_gets_region_and_eventfd_and_its_end_ends_the_session(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, (region_fd, kick_fd) = await client.open()
            assert os.fstat(region_fd).st_size == opened.region_bytes == GIB
            assert opened.block_bytes == BLOCK_BYTES
            assert os.pread(region_fd, 4, opened.block_offset) == b"used"
            os.eventfd_write(kick_fd, 1)
            (info,) = await api.sessions()
            assert (info["pid"], info["uid"]) == (os.getpid(), os.getuid())
            assert (info["comm"], info["vm"], info["state"]) == ("vectoradd", "host", "running")
            assert f"--block-offset {opened.block_offset}" in Path(info["log"]).read_text()
            client.sock.close()
            await gone(api)
            assert os.pread(region_fd, 4, opened.block_offset) == b"\0\0\0\0"

    run(body)


def test_kick_frame_reaches_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "kick")

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, _ = await client.open()
            client.send(Frame(cf.Kick(), opened.session))
            frame, _ = await client.receive()
            assert frame == Frame(cf.Closed(999, "the worker ended with status 0"), opened.session)

    run(body)


def test_two_clients_share_a_region_but_no_block(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            path = await open_run(api)
            first, second = Client(path), Client(path)
            (a, fds_a), (b, fds_b) = await asyncio.gather(first.open(), second.open())
            assert a.session != b.session
            assert abs(a.block_offset - b.block_offset) >= BLOCK_BYTES
            assert os.fstat(fds_a[0]).st_ino == os.fstat(fds_b[0]).st_ino

    run(body)


def test_end_of_the_run_ends_its_sessions(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api, other = await daemon.api(), await daemon.api()
            path = await open_run(api)
            client = Client(path)
            await client.open()
            api.close()
            await gone(other)
            assert not Path(path).exists()

    run(body)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("refuse", cf.Refused(803, "no such driver")),
        ("silent", cf.Refused(802, "the worker was not ready within 0.5 s")),
    ],
)
def test_worker_that_does_not_start_is_a_refusal(
    mode: str, expected: cf.Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", mode)

    async def body() -> None:
        async with kvgpud(tmp_path, ready_timeout_s=0.5, grace_s=0.1) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            client.send(Frame(OPEN, 3))
            frame, _ = await client.receive()
            assert isinstance(frame.body, cf.Refused)
            assert frame.id == 3
            assert frame.body.cuda_error == expected.cuda_error
            assert frame.body.message.startswith(expected.message)
            await gone(api)

    run(body)


def test_crash_of_a_worker_closes_its_session_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            path = await open_run(api)
            bystander = Client(path)
            other, _ = await bystander.open()
            monkeypatch.setenv("FAKE_WORKER", "crash")
            client = Client(path)
            opened, _ = await client.open()
            frame, _ = await client.receive()
            assert frame == Frame(
                cf.Closed(999, "the worker was killed by SIGABRT"), opened.session
            )
            assert [info["session"] for info in await api.sessions()] == [other.session]

    run(body)


def test_stubborn_worker_is_killed_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "stubborn")

    async def body() -> None:
        async with kvgpud(tmp_path, grace_s=0.3) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            await client.open()
            (info,) = await api.sessions()
            client.sock.close()
            assert 0.2 < await gone(api) < 1.0
            with pytest.raises(ProcessLookupError):
                os.kill(info["worker_pid"], 0)

    run(body)


def test_extents_are_zeroed_when_their_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "extents")

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, (region_fd, _) = await client.open()
            top = opened.region_bytes - 4 * MIB
            while (await api.sessions())[0]["pinned_bytes"] != 4 * MIB or not os.pread(
                region_fd, 4, top - 4 * MIB
            ) == bytes(4):
                await asyncio.sleep(0.01)
            assert os.pread(region_fd, 4, top) == b"used"
            client.sock.close()
            await gone(api)
            assert os.pread(region_fd, 4, top) == bytes(4)

    run(body)


def test_other_major_version_is_refused_with_the_side_to_upgrade(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            client.send(Frame(cf.Open(cf.PROTOCOL_MAJOR + 1, 0, 0, 0, 0, 0, b""), 1))
            frame, _ = await client.receive()
            assert isinstance(frame.body, cf.Refused)
            assert "upgrade the host's kvgpu package" in frame.body.message

    run(body)


def test_session_kill_tells_the_client(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, _ = await client.open()
            await api.ask(SessionKillRequest(opened.session))
            frame, _ = await client.receive()
            assert isinstance(frame.body, cf.Closed)
            assert "administrator" in frame.body.message
            with pytest.raises(DaemonError, match="no session 99"):
                await api.ask(SessionKillRequest(99))

    run(body)


def test_stop_reaps_all_workers(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            await client.open()
            worker_pid = (await api.sessions())[0]["worker_pid"]
            await daemon.api()  # a connection that asks nothing
        with pytest.raises(ProcessLookupError):
            os.kill(worker_pid, 0)
        assert not (tmp_path / "kvgpud.sock").exists()

    run(body)


def test_status_shows_driver_and_devices(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            status = await (await daemon.api()).ask(HostStatusRequest())
            assert status["inventory"]["devices"][0]["name"] == "fake"
            assert status["driver"].endswith("libcuda.so.1")

    run(body)


# --- VMs: the test listens where QEMU would, and speaks as the agent ---


class FakeQemu:
    def __init__(self, runtime_dir: Path) -> None:
        self.uuid = uuid4()
        self.path = runtime_dir / "vm" / f"{self.uuid}.sock"
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        machine = Machine("vm1", self.uuid, GIB, 1, kvm=False)
        slices = Slices(GIB, 25, 64 * MIB)
        self.domain_xml = make_domain(machine, slices, str(runtime_dir))
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
        writer.close()

    async def say(self, frame: Frame) -> None:
        await self._connected.wait()
        assert self._writer
        self._writer.write(frame.encode())

    async def hello(self, boot_id: bytes) -> cf.Welcome:
        await self.say(Frame(cf.Hello(cf.PROTOCOL_MAJOR, cf.PROTOCOL_MINOR, 0, boot_id)))
        body = (await self.frames.get()).body
        while not isinstance(body, cf.Welcome):
            body = (await self.frames.get()).body
        return body

    async def open(self) -> cf.Opened:
        await self.say(Frame(OPEN, 11))
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
async def vm(daemon: Kvgpud, api: Api) -> AsyncIterator[FakeQemu]:
    qemu = FakeQemu(daemon.runtime_dir)
    try:
        await api.ask(qemu.hook("prepare"))
        await qemu.start()
        await api.ask(qemu.hook("started"))
        yield qemu
    finally:
        region_path(qemu.uuid).unlink(missing_ok=True)


def test_vm_life_from_prepare_to_release(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                assert region_path(qemu.uuid).stat().st_size == GIB
                welcome = await qemu.hello(b"a" * 16)
                assert UUID(bytes=welcome.vm_uuid) == qemu.uuid
                opened = await qemu.open()
                (info,) = (await api.ask(VmListRequest()))["vms"]
                assert (info["state"], info["n_sessions"]) == ("ready", 1)
                await qemu.say(Frame(cf.Close(), opened.session))
                frame = await qemu.frames.get()
                assert isinstance(frame.body, cf.Closed)
                await gone(api)
                qemu.die()
                for _ in range(2):  # stopped and release both come; both must be harmless
                    await api.ask(qemu.hook("release"))
                assert not region_path(qemu.uuid).exists()
                assert (await api.ask(VmListRequest()))["vms"] == []

    run(body)


def test_death_of_qemu_ends_all_sessions_within_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "stubborn")

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                await qemu.open()
                await qemu.open()
                qemu.die()
                await gone(api, limit_s=2.0)

    run(body)


def test_other_boot_id_ends_older_sessions_and_the_same_one_does_not(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                await qemu.open()
                await qemu.hello(b"a" * 16)
                assert len(await api.sessions()) == 1
                await qemu.hello(b"b" * 16)
                assert await api.sessions() == []

    run(body)


def test_vm_cannot_touch_a_session_of_another(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, _ = await client.open()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                await qemu.say(Frame(cf.Close(), opened.session))
                await qemu.hello(b"a" * 16)  # answered in order, so CLOSE has been looked at
                assert (await api.sessions())[0]["state"] == "running"

    run(body)


def test_vm_is_taken_up_again_after_a_restart_of_kvgpud(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path)
            await api.ask(qemu.hook("prepare"))
            await qemu.start()
            await qemu.hello(b"a" * 16)
        try:
            assert region_path(qemu.uuid).exists()
            qemu._connected.clear()
            async with kvgpud(tmp_path) as daemon:
                api = await daemon.api()
                await qemu.hello(b"a" * 16)
                await qemu.open()
                await api.ask(qemu.hook("reconnect"))
                assert len(await api.sessions()) == 1
        finally:
            region_path(qemu.uuid).unlink(missing_ok=True)

    run(body)


def test_sigkilled_client_process_ends_its_session(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            path = await open_run(api)
            pid = os.fork()
            if pid == 0:  # the client; its own child keeps the connection open
                client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                client.connect(path)
                client.send(Frame(OPEN, 1).encode())
                os.read(client.fileno(), 8192)
                if os.fork() == 0:
                    time.sleep(3)
                    os._exit(0)
                time.sleep(60)
                os._exit(0)
            while not any(s["state"] == "running" for s in await api.sessions()):
                await asyncio.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            await gone(api, limit_s=2.0)
            os.waitpid(pid, 0)

    run(body)
