# SPDX-License-Identifier: Apache-2.0
"""Workers that wait for a session: started, confined, and through with cuInit (PROTOCOL.md §5).

They hold no context, so no memory of a GPU. They are no sessions: they end with kvgpud, and the
next one starts others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kvgpu.host.complaints import Complaints
from kvgpu.host.control_frames import WINDOWS, Frame
from kvgpu.host.errors import ConfigError, KvgpuError
from kvgpu.host.inventory import Driver
from kvgpu.host.worker_process import WorkerProcess, start_worker
from kvgpu.host.worker_settings import WorkerSettings

_log = logging.getLogger(__name__)
# A worker keeps its addresses free before it loads the driver, so this is chosen in advance: the
# first that clients try.
_WINDOW = WINDOWS[0]
# After one was taken: cuInit of the next holds the driver up while the session makes its context
# (one H200, start to first result: 214 ms without this pause, 164 ms with it).
_REFILL_PAUSE_S = 1.0
_FIRST_PAUSE_S = 1.0  # after one that could not be started, or died
_LAST_PAUSE_S = 60.0
_KILL_LIMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Prestarted:
    process: WorkerProcess
    log: Path  # becomes the session's


class WorkerPool:
    """Keeps `settings.n_prestarted` workers ready; 0: none."""

    def __init__(
        self, settings: WorkerSettings, get_driver: Callable[[], Awaitable[Driver]]
    ) -> None:
        self._settings = settings
        self._get_driver = get_driver
        self._waiting: list[Prestarted] = []
        self._unassigned: set[WorkerProcess] = set()  # those that wait, start or end
        self._is_short = asyncio.Event()
        self._n_started = 0
        self._complaints = Complaints(_log, "pre-started workers")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        for log in self._settings.log_dir.glob("prestarted-*.log"):  # of a kvgpud that was killed
            log.unlink(missing_ok=True)
        if self._settings.n_prestarted:
            self._task = asyncio.create_task(self._keep_full())

    def take(self, window: int, owner: str) -> Prestarted | None:
        """Return a worker that waits for a session with this window, None if there is none."""
        if window != _WINDOW or not self._waiting or not self._settings.may_wait(owner):
            return None
        self._is_short.set()
        taken = self._waiting.pop(0)
        self._unassigned.discard(taken.process)
        return taken

    async def close(self) -> None:
        """End those that have no session."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        waited, self._waiting = self._waiting, []
        for worker in waited:
            worker.process.end()
        if self._unassigned:
            limit_s = self._settings.grace_s + _KILL_LIMIT_S
            await asyncio.wait([process.reaped for process in self._unassigned], timeout=limit_s)
        for worker in waited:
            worker.log.unlink(missing_ok=True)

    async def _keep_full(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                while len(self._waiting) < self._settings.n_prestarted:
                    await self._add()
                    pause_s = _FIRST_PAUSE_S
            except (KvgpuError, OSError) as error:  # sessions start workers of their own meanwhile
                self._complaints.add(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)
                continue
            self._is_short.clear()
            await self._is_short.wait()
            await asyncio.sleep(_REFILL_PAUSE_S)

    async def _add(self) -> None:
        settings = self._settings
        driver = await self._get_driver()
        self._n_started += 1
        log = settings.log_dir / f"prestarted-{self._n_started}.log"
        with contextlib.suppress(OSError):  # then it has no log
            settings.log_dir.mkdir(parents=True, exist_ok=True)
        command = [*settings.command(driver, _WINDOW), "--prestart"]
        try:
            handle = start_worker(command, None, log, None, settings.confinement(0, None))
        except OSError:
            log.unlink(missing_ok=True)
            raise
        process = WorkerProcess(handle, settings.grace_s, _ignore)
        self._unassigned.add(process)
        process.reaped.add_done_callback(lambda _: self._unassigned.discard(process))
        try:
            async with asyncio.timeout(settings.ready_timeout_s):
                await asyncio.shield(process.prestarted)
        except BaseException as error:
            process.end()
            log.unlink(missing_ok=True)
            if isinstance(error, TimeoutError):
                reason = f"not ready within {settings.ready_timeout_s:g} s"
                raise ConfigError(reason, hint="does the driver hang?") from error
            raise
        worker = Prestarted(process, log)
        if process.reaped.done():
            raise self._lost(worker)
        self._waiting.append(worker)
        process.reaped.add_done_callback(lambda _: self._on_end(worker))

    def _on_end(self, worker: Prestarted) -> None:
        if worker in self._waiting:
            self._waiting.remove(worker)
            self._complaints.add(self._lost(worker))
            asyncio.get_running_loop().call_later(_FIRST_PAUSE_S, self._is_short.set)

    def _lost(self, worker: Prestarted) -> KvgpuError:
        """Say why one has ended, with its last words; its log goes."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = worker.log.read_text(errors="replace").strip().splitlines()
            worker.log.unlink()
        _, reason = worker.process.failure()
        return ConfigError(": ".join([reason, *lines[-1:]]), hint="sessions start their own")


def _ignore(frame: Frame) -> None:
    _log.warning("a worker without a session sent %s", type(frame.body).__name__)
