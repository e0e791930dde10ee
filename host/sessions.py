# SPDX-License-Identifier: Apache-2.0
"""The session broker: gives every client process a block of its region and a worker of its own.

A block and the extents of a session are given out again only after its worker has been reaped:
until then the worker, and through it the GPU, may still write there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from kvgpu.host import cuda_errors
from kvgpu.host.complaints import Complaints
from kvgpu.host.control_frames import (
    FEATURES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    WINDOWS,
    Facts,
    Open,
    Refused,
)
from kvgpu.host.device_frames import DeviceQuery, DeviceReport
from kvgpu.host.device_reports import DeviceReports
from kvgpu.host.errors import KvgpuError, SessionError
from kvgpu.host.inventory import Driver
from kvgpu.host.ivshmem.region import Region
from kvgpu.host.orphans import Orphan
from kvgpu.host.session import Owner, Session
from kvgpu.host.shares import Shares
from kvgpu.host.visible_devices import TwiceError, visible_devices
from kvgpu.host.worker_pool import WorkerPool
from kvgpu.host.worker_settings import WorkerSettings

_log = logging.getLogger(__name__)

MAX_SESSIONS_PER_REGION = 64
_MAX_STARTING = 8  # workers that start at a time; the others wait
_N_LOGS_KEPT = 200
_MAX_LOG_BYTES = 17 << 20  # what a worker says itself is less (host/worker/log.cpp)
_LEAST_FREE_BYTES = 1 << 20
_MAX_NUMBER = 0x7FFF_FFFF
_KILL_LIMIT_S = 2.0  # from SIGKILL to a worker's end; a driver may take a while to free memory


class SessionBroker:
    """Opens and ends sessions, and knows all of them."""

    def __init__(
        self, settings: WorkerSettings, get_driver: Callable[[], Awaitable[Driver]]
    ) -> None:
        self.sessions: dict[int, Session] = {}
        self._shares = Shares(self.sessions)
        self._settings = settings
        self._get_driver = get_driver
        self.pool = WorkerPool(settings, get_driver)
        self.reports = DeviceReports(settings.binary, get_driver)
        self._starting = asyncio.Semaphore(_MAX_STARTING)
        self._complaints = Complaints(_log, str(settings.log_dir))
        with contextlib.suppress(OSError):  # said when a session's log is made
            settings.log_dir.mkdir(parents=True, exist_ok=True)
        self._logs = _logs_in(settings.log_dir)
        # A guest may still speak of sessions of an earlier kvgpud: their numbers do not come again.
        newest = _number_of(self._logs[-1]) if self._logs else 0
        self._last_number = max(int(time.time()) & _MAX_NUMBER, newest)
        self._watchers: set[asyncio.Task[None]] = set()

    async def open(
        self, request: Open, owner: Owner, region: Region, on_end: Callable[[Session], None]
    ) -> Session:
        """Start a worker for `request` and return once it is ready.

        `on_end` is called when a session that was opened is gone, for whatever reason.
        Raises SessionError; if the caller is cancelled, whatever was begun is ended.
        """
        check_version(request.major, "guest")
        check_window(request.window)
        session = await region.when_freed(partial(self._new_session, owner, region, request))
        if session is None:
            raise SessionError(
                cuda_errors.OUT_OF_MEMORY,
                f"{owner.name}: no room for another session",
                hint="end some",
            )
        try:
            async with self._starting:
                await self._start(session)
                self._save(session)
        except BaseException:
            session.end()
            if session.worker:
                session.worker.end()
            else:
                session.free()
                del self.sessions[session.number]
            raise
        session.state = "running"
        self._watch(session, on_end)
        _log.info("session %d: opened for %s, %s", session.number, owner.name, session.comm)
        return session

    def resume(
        self, orphan: Orphan, owner: Owner, region: Region, on_end: Callable[[Session], None]
    ) -> Session:
        """Go on with a session that an earlier kvgpud opened in `region`; `on_end` as in `open`."""
        record = orphan.record
        number, log = record.session, self._settings.log_dir / f"session-{record.session}.log"
        session = Session(
            *(number, owner, region, record.block_offset, record.request(), log),
            *(self._settings.store, self._shares),
        )
        session.resume(orphan, self._settings.grace_s)
        self.sessions[number] = session
        self._last_number = max(self._last_number, number)
        self._watch_worker(session)
        self._watch(session, on_end)
        _log.info("session %d: taken up for %s, %s", number, owner.name, session.comm)
        return session

    async def facts(self) -> Facts:
        """Return what a client may know without a session; waits until the driver has answered."""
        try:
            version = (await self._get_driver()).version
        except KvgpuError:
            version = 0
        return Facts(PROTOCOL_MAJOR, PROTOCOL_MINOR, FEATURES, version)

    async def report(self, query: DeviceQuery, region: Region) -> DeviceReport | Refused:
        """Describe a device to the VM, or the run, that `region` belongs to."""
        own = [session for session in self.sessions.values() if session.region is region]
        try:
            return await self.reports.report(query, own)
        except SessionError as error:
            return Refused(error.cuda_error, str(error))

    async def end(self, sessions: list[Session]) -> None:
        """End `sessions` and wait until nothing is left of them.

        A worker that even SIGKILL does not end (it hangs in the kernel) is not waited for: what it
        holds stays taken until it is gone.
        """
        for session in sessions:
            session.end()
        try:
            async with asyncio.timeout(self._settings.grace_s + _KILL_LIMIT_S):
                for session in sessions:
                    await session.gone.wait()
        except TimeoutError:
            left = [session.number for session in sessions if not session.gone.is_set()]
            _log.error("sessions %s: their workers cannot be killed", left)

    def leave(self) -> None:
        """Let go of all sessions; they go on for the next kvgpud. The broker is of no use then."""
        for session in self.sessions.values():
            if session.worker and not session.worker.reaped.done():
                session.worker.leave()
        for watcher in self._watchers:
            watcher.cancel()

    def _save(self, session: Session) -> None:
        try:
            session.save()
        except OSError as error:
            raise SessionError(
                cuda_errors.OPERATING_SYSTEM,
                f"cannot keep a session's state: {error}",
                hint="is there room in the host's /run?",
            ) from error

    def _new_session(self, owner: Owner, region: Region, request: Open) -> Session | None:
        """Return a session, None if `region` has no room for it."""
        if sum(s.region is region for s in self.sessions.values()) >= MAX_SESSIONS_PER_REGION:
            raise SessionError(
                cuda_errors.OUT_OF_MEMORY,
                f"{owner.name} has {MAX_SESSIONS_PER_REGION} sessions, more are not served",
                hint="end some",
            )
        block_offset = region.allocate_block()
        if block_offset is None:
            return None
        log = self._next_log()
        session = Session(
            *(self._last_number, owner, region, block_offset, request, log),
            *(self._settings.store, self._shares),
        )
        self.sessions[session.number] = session
        return session

    def _next_log(self) -> Path:
        """Number the next session; return its log's path, and remove the logs that are too old."""
        try:
            self._settings.log_dir.mkdir(parents=True, exist_ok=True)
            living = {session.log for session in self.sessions.values()}
            ended = [log for log in self._logs if log not in living]
            for log in ended[: max(0, len(self._logs) + 1 - _N_LOGS_KEPT)]:
                log.unlink(missing_ok=True)
                self._logs.remove(log)
            if shutil.disk_usage(self._settings.log_dir).free < _LEAST_FREE_BYTES:
                self._complaints.add("no space is left: the sessions' logs end early")
        except OSError as error:  # the sessions go on without
            self._complaints.add(error.strerror)
        self._last_number += 1
        self._logs.append(self._settings.log_dir / f"session-{self._last_number}.log")
        return self._logs[-1]

    async def _start(self, session: Session) -> None:
        try:
            driver = await self._get_driver()
        except KvgpuError as error:
            raise SessionError(cuda_errors.NO_DEVICE, error.message, hint=error.hint) from error
        if session.state == "ending":
            raise SessionError(*session.why_ended())
        session.devices = _devices_for(session, driver)
        try:
            self._give_worker(session, driver)
        except KvgpuError as error:
            raise SessionError(cuda_errors.OUT_OF_MEMORY, error.message, hint=error.hint) from error
        except OSError as error:
            if session.worker:
                self._watch_worker(session)
            raise SessionError(
                cuda_errors.OPERATING_SYSTEM,
                f"cannot start the worker: {error}",
                hint="see kvgpud's log on the host",
            ) from error
        self._watch_worker(session)
        self._save(session)
        assert session.worker
        try:
            async with asyncio.timeout(self._settings.ready_timeout_s):
                await asyncio.shield(session.worker.started)
        except TimeoutError as error:
            limit_s = self._settings.ready_timeout_s
            raise SessionError(
                cuda_errors.SYSTEM_NOT_READY,
                f"the worker was not ready within {limit_s:g} s",
                hint=f"see {session.log} on the host; does its driver hang?",
            ) from error
        has_ended = session.state == "ending" or session.worker.reaped.done()
        if has_ended or not session.worker.is_ready:
            code, reason = session.why_ended()
            raise SessionError(code, reason, hint=f"see {session.log} on the host")

    def _watch_worker(self, session: Session) -> None:
        reaper = asyncio.create_task(self._reap(session))
        self._watchers.add(reaper)
        reaper.add_done_callback(self._watchers.discard)

    async def _reap(self, session: Session) -> None:
        assert session.worker
        await session.worker.reaped
        _cut(session.log)
        session.free()
        del self.sessions[session.number]
        _log.info("session %d: gone", session.number)

    def _watch(self, session: Session, on_end: Callable[[Session], None]) -> None:
        async def watch() -> None:
            await session.gone.wait()
            on_end(session)

        task = asyncio.create_task(watch())
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    def _give_worker(self, session: Session, driver: Driver) -> None:
        """Start a worker, or take one that waits. Raises OSError, KvgpuError."""
        sees_all = session.devices == tuple(range(len(driver.devices)))
        devices = None if sees_all else session.devices
        prestarted = None
        if not session.is_byte_stream:
            prestarted = self.pool.take(session.request.window, session.scope, devices)
        if prestarted:
            session.take(prestarted)
            return
        settings, region = self._settings, session.region
        command = [
            *settings.command(driver, session.request.window, devices),
            *("--session", str(session.number)),
            *("--region-bytes", str(region.size_bytes)),
            *("--block-offset", str(session.block_offset)),
        ]
        if settings.store.away_limit_s and not session.is_byte_stream:
            command += ["--away-s", str(settings.store.away_limit_s)]
        session.start(command, settings)


def _devices_for(session: Session, driver: Driver) -> tuple[int, ...]:
    uuids = [device.get("uuid", "") for device in driver.devices]
    hint = "name those that `nvidia-smi -L` or `kvgpu-smi -L` lists, or unset it"
    try:
        devices = visible_devices(session.request.visible, uuids)
    except TwiceError as error:
        reason = f"CUDA_VISIBLE_DEVICES names {error} twice"
        raise SessionError(cuda_errors.INVALID_DEVICE, reason, hint=hint) from error
    if not devices and session.request.visible is not None:
        raise SessionError(
            cuda_errors.NO_DEVICE,
            f"CUDA_VISIBLE_DEVICES names none of the {len(uuids)} device(s)",
            hint=hint,
        )
    return devices


def _number_of(log: Path) -> int:
    return int(log.stem.removeprefix("session-"))


def _logs_in(log_dir: Path) -> list[Path]:
    """Return the logs of sessions in `log_dir`, the oldest first."""
    pattern = re.compile(r"session-[0-9]{1,10}\.log")
    logs = [path for path in log_dir.glob("session-*.log") if pattern.fullmatch(path.name)]
    return sorted((log for log in logs if _number_of(log) <= _MAX_NUMBER), key=_number_of)


def _cut(log: Path) -> None:
    """Keep no more of a log than a worker that is not taken over writes."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _MAX_LOG_BYTES:
            os.truncate(log, _MAX_LOG_BYTES)


def check_window(window: int) -> None:
    """Refuse a window that is not one of the protocol's: the worker maps memory there."""
    if window not in WINDOWS:
        raise SessionError(
            cuda_errors.INVALID_VALUE,
            f"{window:#x} is not a window of the protocol",
            hint="use one of " + ", ".join(f"{known:#x}" for known in WINDOWS),
        )


def check_version(major: int, peer: str) -> None:
    """Refuse a peer of another major version, and say which side is the older one."""
    if major != PROTOCOL_MAJOR:
        older = f"the {peer}'s" if major < PROTOCOL_MAJOR else "the host's"
        raise SessionError(
            cuda_errors.SYSTEM_DRIVER_MISMATCH,
            f"protocol {major}.x of the {peer} and {PROTOCOL_MAJOR}.x of the host do not fit",
            hint=f"upgrade {older} kvgpu package",
        )
