# SPDX-License-Identifier: Apache-2.0
"""Workers that wait for a session: started, confined, and through with cuInit (PROTOCOL.md §5).

They hold no context, so no memory of a GPU. They are no sessions: they end with kvgpud, and the
next one starts others. What a driver shows of the devices is settled by cuInit, so there are some
that see all devices and some for each other choice that programs have had lately.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kvgpu.host.complaints import Complaints
from kvgpu.host.control_frames import WINDOWS, Frame
from kvgpu.host.errors import ConfigError, KvgpuError
from kvgpu.host.inventory import Driver
from kvgpu.host.worker_process import WorkerProcess, start_worker
from kvgpu.host.worker_settings import Devices, WorkerSettings, all_of

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
_MOST_CHOICES = 16  # of devices; a worker takes some 130 MiB of the host's memory (driver 580)


@dataclass(frozen=True, slots=True)
class Prestarted:
    process: WorkerProcess
    log: Path  # becomes the session's


class WorkerPool:
    """Keeps `settings.n_prestarted` workers ready for each choice of devices; 0: none."""

    def __init__(
        self, settings: WorkerSettings, get_driver: Callable[[], Awaitable[Driver]]
    ) -> None:
        self._settings = settings
        self._get_driver = get_driver
        # By choice: that of the last session last, one for which none could be started first.
        self._waiting: OrderedDict[Devices, list[Prestarted]] = OrderedDict()
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

    def take(self, window: int, owner: str, devices: Devices) -> Prestarted | None:
        """Return one that waits for a session with this window and devices; None: there is none."""
        if window != _WINDOW or self._task is None or not self._settings.may_wait(owner):
            return None
        waiting = self._waiting.setdefault(devices, [])
        self._waiting.move_to_end(devices)
        self._is_short.set()
        if not waiting:
            return None
        taken = waiting.pop(0)
        self._unassigned.discard(taken.process)
        return taken

    async def close(self) -> None:
        """End those that have no session."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        waited = [worker for waiting in self._waiting.values() for worker in waiting]
        self._waiting.clear()
        for worker in waited:
            self._end(worker)
        if self._unassigned:
            limit_s = self._settings.grace_s + _KILL_LIMIT_S
            await asyncio.wait([process.reaped for process in self._unassigned], timeout=limit_s)

    async def _keep_full(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                driver = await self._get_driver()
                while (devices := self._shortest(driver)) is not None:
                    await self._try(driver, devices)
                    pause_s = _FIRST_PAUSE_S
            except (KvgpuError, OSError) as error:  # sessions start workers of their own meanwhile
                self._complaints.add(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)
                continue
            self._is_short.clear()
            await self._is_short.wait()
            await asyncio.sleep(_REFILL_PAUSE_S)

    def _shortest(self, driver: Driver) -> Devices | None:
        """Return the choice that lacks a worker, of several the last session's."""
        if not self._waiting:
            self._waiting[all_of(driver)] = []
        while len(self._waiting) > _MOST_CHOICES:
            for worker in self._waiting.popitem(last=False)[1]:
                self._end(worker)
        for devices, waiting in reversed(self._waiting.items()):
            if len(waiting) < self._settings.n_prestarted:
                return devices
        return None

    async def _try(self, driver: Driver, devices: Devices) -> None:
        """Add one; a choice for which there is none to be had comes after the others."""
        try:
            await self._add(driver, devices)
        except (KvgpuError, OSError):
            self._waiting.move_to_end(devices, last=False)
            raise

    async def _add(self, driver: Driver, devices: Devices) -> None:
        settings = self._settings
        self._n_started += 1
        log = settings.log_dir / f"prestarted-{self._n_started}.log"
        with contextlib.suppress(OSError):  # then it has no log
            settings.log_dir.mkdir(parents=True, exist_ok=True)
        command = [*settings.command(driver, _WINDOW, devices), "--prestart"]
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
        self._waiting.setdefault(devices, []).append(worker)
        process.reaped.add_done_callback(lambda _: self._on_end(worker))

    def _on_end(self, worker: Prestarted) -> None:
        for waiting in self._waiting.values():
            if worker in waiting:
                waiting.remove(worker)
                self._complaints.add(self._lost(worker))
                asyncio.get_running_loop().call_later(_FIRST_PAUSE_S, self._is_short.set)

    def _end(self, worker: Prestarted) -> None:
        worker.process.end()
        worker.log.unlink(missing_ok=True)

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
