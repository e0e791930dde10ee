# SPDX-License-Identifier: Apache-2.0
"""The session broker where something fails: nothing leaks, everybody gets an answer."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from framework.kvgpud import OPEN, run

from kvgpu.host import cuda_errors, sessions
from kvgpu.host.control_frames import Frame, Ping
from kvgpu.host.errors import RegionError, SessionError
from kvgpu.host.inventory import Driver
from kvgpu.host.ivshmem import region as region_module
from kvgpu.host.ivshmem.region import Region
from kvgpu.host.packet_socket import PacketSocket
from kvgpu.host.session import Owner, Session
from kvgpu.host.session_store import SessionStore
from kvgpu.host.sessions import SessionBroker, WorkerSettings
from kvgpu.host.units import MIB


@pytest.fixture
def region() -> Iterator[Region]:
    region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
    yield region
    region.close()


@pytest.fixture
def settings(tmp_path: Path, fake_worker: Path) -> WorkerSettings:
    store = SessionStore(tmp_path / "sessions", 0)
    return WorkerSettings(fake_worker, tmp_path / "log", None, 5, 0.5, store)


async def driver_at_once() -> Driver:
    return Driver(Path("libcuda.so.1"), {})


def broker_of(
    settings: WorkerSettings, get_driver: Callable[[], Awaitable[Driver]] = driver_at_once
) -> SessionBroker:
    return SessionBroker(settings, get_driver)


async def open_session(broker: SessionBroker, region: Region) -> Session:
    return await broker.open(OPEN, Owner("vm1"), region, lambda _: None)


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_session_ended_before_its_worker_starts_gets_none(
    settings: WorkerSettings, region: Region
) -> None:
    async def body() -> None:
        go_on = asyncio.Event()

        async def late_driver() -> Driver:
            await go_on.wait()
            return await driver_at_once()

        broker = broker_of(settings, late_driver)
        opening = asyncio.create_task(open_session(broker, region))
        while not broker.sessions:
            await asyncio.sleep(0)
        (session,) = broker.sessions.values()
        session.end((cuda_errors.NOT_PERMITTED, "not wanted"))
        go_on.set()
        with pytest.raises(SessionError, match="not wanted"):
            await opening
        assert session.worker is None
        assert session.gone.is_set()
        assert not broker.sessions
        assert region.allocate_block() == session.block_offset

    run(body)


def test_log_that_cannot_be_kept_is_a_refusal_and_leaks_no_block(
    settings: WorkerSettings, region: Region
) -> None:
    async def body() -> None:
        broker = broker_of(settings)
        settings.log_dir.rmdir()
        settings.log_dir.write_text("in the way")
        first = region.allocate_block()
        assert first is not None
        region.free_block(first)
        with pytest.raises(SessionError, match="log") as caught:
            await open_session(broker, region)
        assert caught.value.cuda_error == cuda_errors.OPERATING_SYSTEM
        assert not broker.sessions
        assert region.allocate_block() == first

    run(body)


def test_sessions_of_a_region_are_limited(
    settings: WorkerSettings, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS_PER_REGION", 1)

    async def body() -> None:
        broker = broker_of(settings)
        session = await open_session(broker, region)
        with pytest.raises(SessionError, match="vm1 has 1 sessions"):
            await open_session(broker, region)
        await broker.end([session])
        await broker.end([await open_session(broker, region)])

    run(body)


def test_session_numbers_do_not_come_again_and_old_logs_go(
    settings: WorkerSettings, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_N_LOGS_KEPT", 2)

    async def body() -> None:
        numbers = []
        for _ in range(2):  # the second kvgpud starts within the same second
            broker = broker_of(settings)
            for _ in range(2):
                session = await open_session(broker, region)
                numbers.append(session.number)
                await broker.end([session])
        assert numbers == sorted(set(numbers))
        assert {log.name for log in settings.log_dir.iterdir()} == {
            f"session-{number}.log" for number in numbers[-2:]
        }

    run(body)


def test_range_that_cannot_be_freed_stays_taken_and_the_rest_is_freed(
    settings: WorkerSettings, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "extents")
    punch_hole = region_module.punch_hole

    async def body() -> None:
        broker = broker_of(settings)
        session = await open_session(broker, region)
        while session.info().pinned_bytes != 4 * MIB or session.number not in broker.sessions:
            await asyncio.sleep(0.01)
        # Of both extents the upper one is left, if the lower one has been given back already.
        extents = set(session._extents)

        def fail_for_extents(fd: int, offset: int, size_bytes: int) -> None:
            if offset in extents:
                raise RegionError("cannot free region memory")
            punch_hole(fd, offset, size_bytes)

        monkeypatch.setattr(region_module, "punch_hole", fail_for_extents)
        await broker.end([session])
        assert session.gone.is_set()
        assert region.allocate_block() == session.block_offset
        taken = region.allocate_extent(4 * MIB)
        assert taken is not None
        assert taken[0] not in extents

    run(body)


def test_worker_that_cannot_be_watched_is_reaped(
    settings: WorkerSettings, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pidfd(pid: int) -> int:
        raise OSError(24, "Too many open files")

    async def body() -> None:
        broker = broker_of(settings)
        n_before = n_descriptors()
        monkeypatch.setattr(os, "pidfd_open", no_pidfd)
        with pytest.raises(SessionError, match="Too many open files"):
            await open_session(broker, region)
        assert n_descriptors() == n_before
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        assert not broker.sessions

    run(body)


def test_peer_that_goes_on_sending_cannot_keep_drain() -> None:
    async def body() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ping = Frame(Ping()).encode()
        n_frames = 0

        def on_frame(_: Frame) -> None:
            nonlocal n_frames
            n_frames += 1
            assert n_frames < 100_000, "drain does not end"
            theirs.send(ping)

        packets = PacketSocket(ours, "peer", on_frame, lambda: None)
        theirs.send(ping)
        packets.drain()
        assert n_frames >= 1
        packets.close()
        theirs.close()

    run(body)
