# SPDX-License-Identifier: Apache-2.0
"""kvgpud as programs of the host and the API's users see it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from framework.kvgpud import OPEN, Client, gone, kvgpud, open_run, run

from kvgpu.host import control_frames as cf
from kvgpu.host import session
from kvgpu.host.control_frames import Frame
from kvgpu.host.errors import DaemonError
from kvgpu.host.ivshmem import range_freer
from kvgpu.host.ivshmem.allocator import BLOCK_BYTES
from kvgpu.host.kvgpud import _raise_descriptor_limit
from kvgpu.host.messages import (
    HostStatusRequest,
    SessionKillRequest,
    SessionShowRequest,
)
from kvgpu.host.units import GIB, MIB

pytestmark = pytest.mark.usefixtures("fake_worker")


async def zeroed(region_fd: int, offset: int) -> None:
    """Wait until a range that was given back is zero, which is a while after its session's end."""
    while os.pread(region_fd, 4, offset) != bytes(4):
        await asyncio.sleep(0.01)


def test_local_client_gets_region_and_eventfd_and_its_end_ends_the_session(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, (region_fd, kick_fd, _) = await client.open()
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
            await zeroed(region_fd, opened.block_offset)

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


def regions() -> set[str]:
    """The regions without a name that this process has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {name for name in found if "memfd:kvgpu-" in name}


@pytest.mark.parametrize("in_the_way", ["1.sock", "1.new"])
def test_run_that_cannot_be_begun_leaves_nothing(in_the_way: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path, keep_sessions_s=60) as daemon:
            api = await daemon.api()
            before = regions()
            (tmp_path / "run" / in_the_way).mkdir()
            with pytest.raises(DaemonError, match=in_the_way):
                await open_run(api)
            (tmp_path / "run" / in_the_way).rmdir()
            assert list((tmp_path / "run").iterdir()) == []
            range_freer.wait_for_closing(10)
            assert regions() == before
            assert Path(await open_run(api)).is_socket()

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
        limit_s = 0.5 if mode == "silent" else 20
        async with kvgpud(tmp_path, ready_timeout_s=limit_s, grace_s=0.1) as daemon:
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
            opened, (region_fd, _, _) = await client.open()
            while os.pread(region_fd, 4, opened.block_offset) != b"done":
                await asyncio.sleep(0.01)
            top = opened.region_bytes - 4 * MIB
            while (await api.sessions())[0]["pinned_bytes"] != 4 * MIB:
                await asyncio.sleep(0.01)  # the worker's last word may not have been read yet
            await zeroed(region_fd, top - 4 * MIB)
            assert os.pread(region_fd, 4, top) == b"used"
            client.sock.close()
            await gone(api)
            await zeroed(region_fd, top)

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


@pytest.mark.parametrize("window", [0, OPEN.window + 1, 1 << 63])
def test_window_that_the_protocol_does_not_know_is_refused(window: int, tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            client.send(Frame(replace(OPEN, window=window), 1))
            frame, _ = await client.receive()
            assert isinstance(frame.body, cf.Refused)
            assert frame.body.cuda_error == 1  # CUDA_ERROR_INVALID_VALUE
            assert f"{window:#x} is not a window" in frame.body.message
            assert await api.sessions() == []

    run(body)


@pytest.mark.timeout(15)
def test_kick_of_a_full_eventfd_that_blocks_does_not_hold_kvgpud_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever has the eventfd, too, undoes that before a write gets there.
    monkeypatch.setattr(os, "set_blocking", lambda fd, blocking: None)

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()  # the run ends with it
            client = Client(await open_run(api))
            opened, (_, kick_fd, _) = await client.open()
            os.eventfd_write(kick_fd, (1 << 64) - 2)
            fcntl.fcntl(kick_fd, fcntl.F_SETFL, 0)
            begin_s = time.monotonic()
            client.send(Frame(cf.Kick(), opened.session))
            client.send(Frame(cf.Ping(), 5))
            assert (await client.receive())[0] == Frame(cf.Pong(), 5)
            assert time.monotonic() - begin_s < 5  # not when the test's time was over

    run(body)


def test_clients_wait_while_descriptors_are_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            path = await open_run(api)
            await api.ask(HostStatusRequest())  # the inventory's pipes are closed then
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            client = Client(path)
            lowest_free = os.dup(0)
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            try:
                await asyncio.sleep(0.3)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert sum("accept" in record.message for record in caplog.records) == 1
            await client.open()

    run(body)


def test_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        _raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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


def test_session_show_does_without_a_worker_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_ACTIVITY_LIMIT_S", 0.01)  # an older worker says nothing

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, _ = await client.open()
            for _ in range(2):
                shown = (await api.ask(SessionShowRequest(opened.session)))["session"]
                assert shown == (await api.sessions())[0] | {"activity": None}
            with pytest.raises(DaemonError, match="no session 99"):
                await api.ask(SessionShowRequest(99))

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
