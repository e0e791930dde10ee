# SPDX-License-Identifier: Apache-2.0
"""The session broker: gives every client process a block of its region and a worker of its own.

A block and the extents of a session are given out again only after its worker has been reaped:
until then the worker, and through it the GPU, may still write there.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kvgpu.host import cuda_errors
from kvgpu.host.control_frames import (
    FEATURES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    WINDOWS,
    Facts,
    Open,
)
from kvgpu.host.errors import KvgpuError, SessionError
from kvgpu.host.inventory import Driver
from kvgpu.host.ivshmem.region import Region
from kvgpu.host.orphans import Orphan
from kvgpu.host.session import Owner, Session
from kvgpu.host.session_store import SessionStore

_log = logging.getLogger(__name__)

MAX_SESSIONS_PER_REGION = 64
_MAX_STARTING = 8  # workers that start at a time; the others wait
_N_LOGS_KEPT = 200
_MAX_NUMBER = 0x7FFF_FFFF
_KILL_LIMIT_S = 2.0  # from SIGKILL to a worker's end; a driver may take a while to free memory


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How workers are started, the same for all."""

    binary: Path
    log_dir: Path
    ids: tuple[int, int] | None  # uid and gid; None: as kvgpud, without a jail
    ready_timeout_s: float
    grace_s: float
    store: SessionStore


class SessionBroker:
    """Opens and ends sessions, and knows all of them."""

    def __init__(
        self, settings: WorkerSettings, get_driver: Callable[[], Awaitable[Driver]]
    ) -> None:
        self.sessions: dict[int, Session] = {}
        self._settings = settings
        self._get_driver = get_driver
        self._starting = asyncio.Semaphore(_MAX_STARTING)
        settings.log_dir.mkdir(parents=True, exist_ok=True)
        self._logs = deque(_logs_in(settings.log_dir))
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
        session = self._new_session(owner, region, request)
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
            self._settings.store,
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
                cuda_errors.OPERATING_SYSTEM, f"cannot keep a session's state: {error}"
            ) from error

    def _new_session(self, owner: Owner, region: Region, request: Open) -> Session:
        if sum(s.region is region for s in self.sessions.values()) >= MAX_SESSIONS_PER_REGION:
            raise SessionError(
                cuda_errors.OUT_OF_MEMORY,
                f"{owner.name} has {MAX_SESSIONS_PER_REGION} sessions, more are not served",
                hint="end some",
            )
        try:
            log = self._next_log()
        except OSError as error:
            raise SessionError(
                cuda_errors.OPERATING_SYSTEM, f"cannot keep a session's log: {error}"
            ) from error
        block_offset = region.allocate_block()
        if block_offset is None:
            raise SessionError(
                cuda_errors.OUT_OF_MEMORY,
                f"{owner.name}: no room for another session",
                hint="end some",
            )
        session = Session(
            *(self._last_number, owner, region, block_offset, request, log, self._settings.store)
        )
        self.sessions[session.number] = session
        return session

    def _next_log(self) -> Path:
        """Number the next session; return its log's path, and remove the logs that are too old."""
        self._settings.log_dir.mkdir(parents=True, exist_ok=True)
        while len(self._logs) >= _N_LOGS_KEPT:
            self._logs[0].unlink(missing_ok=True)
            self._logs.popleft()
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
        try:
            session.start(self._command(session, driver), self._settings.grace_s)
        except OSError as error:
            raise SessionError(
                cuda_errors.OPERATING_SYSTEM, f"cannot start the worker: {error}"
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
                cuda_errors.SYSTEM_NOT_READY, f"the worker was not ready within {limit_s:g} s"
            ) from error
        if not session.worker.is_ready or session.state == "ending":
            code, reason = session.why_ended()
            raise SessionError(code, reason, hint=f"see {session.log} on the host")

    def _watch_worker(self, session: Session) -> None:
        reaper = asyncio.create_task(self._reap(session))
        self._watchers.add(reaper)
        reaper.add_done_callback(self._watchers.discard)

    async def _reap(self, session: Session) -> None:
        assert session.worker
        await session.worker.reaped
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

    def _command(self, session: Session, driver: Driver) -> list[str]:
        settings, region = self._settings, session.region
        command = [
            *(str(settings.binary), "--session", str(session.number)),
            *("--region-bytes", str(region.size_bytes)),
            *("--block-offset", str(session.block_offset)),
            *("--window", f"{session.request.window:#x}"),
            *("--driver", str(driver.path)),
        ]
        if settings.store.away_limit_s and not session.is_byte_stream:
            command += ["--away-s", str(settings.store.away_limit_s)]
        if settings.ids:
            uid, gid = settings.ids
            return [*command, "--uid", str(uid), "--gid", str(gid)]
        return [*command, "--no-jail"]


def _number_of(log: Path) -> int:
    return int(log.stem.removeprefix("session-"))


def _logs_in(log_dir: Path) -> list[Path]:
    """Return the logs of sessions in `log_dir`, the oldest first."""
    logs = [p for p in log_dir.iterdir() if re.fullmatch(r"session-[0-9]{1,10}\.log", p.name)]
    return sorted((log for log in logs if _number_of(log) <= _MAX_NUMBER), key=_number_of)


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
