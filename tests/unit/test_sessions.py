# SPDX-License-Identifier: Apache-2.0
"""The session broker where something fails: nothing leaks, everybody gets an answer."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from framework.kvgpud import OPEN, run

from kvgpu.host import cuda_errors, sessions
from kvgpu.host.confinement import Jails
from kvgpu.host.control_frames import Frame, Ping
from kvgpu.host.errors import RegionError, SessionError
from kvgpu.host.inventory import Driver
from kvgpu.host.ivshmem import range_freer
from kvgpu.host.ivshmem.region import Region
from kvgpu.host.packet_socket import PacketSocket
from kvgpu.host.session import Owner, Session
from kvgpu.host.session_store import SessionStore
from kvgpu.host.sessions import SessionBroker
from kvgpu.host.units import MIB
from kvgpu.host.worker_cgroup import WorkerCgroups
from kvgpu.host.worker_process import WorkerProcess
from kvgpu.host.worker_settings import WorkerSettings
from kvgpu.host.worker_uids import WorkerUids

N_UIDS = 3


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


def jails_of(folder: Path) -> Jails:
    uids = WorkerUids(range(2147300000, 2147300000 + N_UIDS), folder / "uids.lock")
    return Jails(os.getgid(), uids, WorkerCgroups(None, MIB, 64), 64)


async def all_freed(region: Region) -> None:
    await region.when_freed(lambda: None)


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
        await all_freed(region)
        assert region.allocate_block() == session.block_offset

    run(body)


def test_log_that_cannot_be_kept_costs_the_log_not_the_session(
    settings: WorkerSettings, region: Region, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        broker = broker_of(settings)
        settings.log_dir.rmdir()
        settings.log_dir.write_text("in the way")
        session = await open_session(broker, region)
        assert f"{session.log}: Not a directory; the session goes on without a log" in caplog.text
        await broker.end([session])

    run(body)


def test_log_of_a_worker_that_writes_without_end_is_cut(
    settings: WorkerSettings, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MAX_LOG_BYTES", 10)

    async def body() -> None:
        broker = broker_of(settings)
        session = await open_session(broker, region)
        assert session.log.stat().st_size > 10
        await broker.end([session])
        assert session.log.stat().st_size == 10

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
    punch_hole = range_freer.punch_hole

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

        monkeypatch.setattr(range_freer, "punch_hole", fail_for_extents)
        await broker.end([session])
        assert session.gone.is_set()
        await all_freed(region)
        assert region.allocate_block() == session.block_offset
        taken = region.allocate_extent(4 * MIB)
        assert taken is not None
        assert taken[0] not in extents

    run(body)


def test_next_session_gets_what_is_still_being_freed(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "extent")
    punch_hole = range_freer.punch_hole

    def slowly(fd: int, offset: int, size_bytes: int) -> None:
        time.sleep(0.2)
        punch_hole(fd, offset, size_bytes)

    monkeypatch.setattr(range_freer, "punch_hole", slowly)

    async def body() -> None:
        broker = broker_of(settings)
        region = Region.create_memfd(uuid4(), 256 * MIB, 4 * MIB)
        for _ in range(2):
            session = await open_session(broker, region)
            while region.allocate_block() is not None:
                pass  # the next one can only have this one's
            while session.info().pinned_bytes != 4 * MIB:
                assert session.number in broker.sessions, "out of pinned memory"
                await asyncio.sleep(0.01)
            await broker.end([session])
        await all_freed(region)
        region.allocate_block()
        with pytest.raises(SessionError, match="no room for another session"):
            await open_session(broker, region)
        region.close()

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


def no_descriptors(*_: object) -> None:
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize("step", [(socket, "socketpair"), (SessionStore, "listen")])
def test_worker_that_cannot_be_started_keeps_no_uid(
    step: tuple[object, str],
    settings: WorkerSettings,
    region: Region,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(settings, jails=jails_of(settings.log_dir))

    async def body() -> None:
        broker = broker_of(settings)
        with monkeypatch.context() as patch:
            patch.setattr(*step, no_descriptors)
            for _ in range(2 * N_UIDS):
                with pytest.raises(SessionError, match="Too many open files"):
                    await open_session(broker, region)

    run(body)


def test_waiting_worker_that_cannot_be_started_keeps_no_uid(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, jails=jails_of(settings.log_dir))

    async def body() -> None:
        pool = broker_of(settings).pool
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", no_descriptors)
            for _ in range(2 * N_UIDS):
                with pytest.raises(OSError, match="Too many open files"):
                    await pool.start_one(None)

    run(body)


def test_waiting_worker_that_cannot_be_started_leaves_no_log(settings: WorkerSettings) -> None:
    async def body() -> None:
        pool = broker_of(replace(settings, binary=Path("/none"))).pool
        with pytest.raises(FileNotFoundError):
            await pool.start_one(None)
        assert not list(settings.log_dir.iterdir())

    run(body)


def test_logs_of_living_sessions_stay(
    settings: WorkerSettings, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_N_LOGS_KEPT", 2)

    async def body() -> None:
        broker = broker_of(settings)
        living = [await open_session(broker, region) for _ in range(3)]
        await broker.end([living.pop(1)])
        for _ in range(2):
            newest = await open_session(broker, region)
            await broker.end([newest])
        expected = {session.log for session in [*living, newest]}
        assert set(settings.log_dir.iterdir()) == expected
        await broker.end(living)
        await broker.end([last := await open_session(broker, region)])
        assert set(settings.log_dir.iterdir()) == {newest.log, last.log}

    run(body)


def test_worker_that_dies_right_after_ready_is_no_session(
    settings: WorkerSettings, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "crash")
    on_frame = WorkerProcess._on_frame

    def on_ready_too_late(worker: WorkerProcess, frame: Frame) -> None:
        on_frame(worker, frame)
        assert select.select([worker.pidfd], [], [], 5) != ([], [], [])

    monkeypatch.setattr(WorkerProcess, "_on_frame", on_ready_too_late)

    async def body() -> None:
        with pytest.raises(SessionError, match="killed by SIGABRT"):
            await open_session(broker_of(settings), region)

    run(body)


def test_worker_says_once_in_one_line_why_it_failed_and_is_ended(
    settings: WorkerSettings,
    region: Region,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "talks")

    async def body() -> None:
        broker = broker_of(settings)
        with pytest.raises(SessionError, match=r"bad\?kvgpud: all is well\?\[31m"):
            await open_session(broker, region)
        assert not broker.sessions
        lines = [r.getMessage() for r in caplog.records if "all is well" in r.getMessage()]
        assert len(lines) == 1
        assert lines[0].endswith("bad?kvgpud: all is well?[31m")

    run(body)


def test_peer_that_sends_without_end_leaves_time_for_others() -> None:
    async def body() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        ping = Frame(Ping()).encode()
        n_frames = 0

        def on_frame(_: Frame) -> None:
            nonlocal n_frames
            n_frames += 1
            theirs.send(ping)

        has_ended = asyncio.Event()
        packets = PacketSocket(ours, "peer", on_frame, has_ended.set)
        for _ in range(4):
            theirs.send(ping)
        begin_s = time.monotonic()
        await asyncio.sleep(0.5)
        assert 64 < n_frames < 100 + 5000 * (time.monotonic() - begin_s)
        theirs.close()
        await asyncio.wait_for(has_ended.wait(), 1)
        packets.close()

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
