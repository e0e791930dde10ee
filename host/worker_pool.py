# SPDX-License-Identifier: Apache-2.0
"""Workers that wait for a session: started, confined, and through with cuInit (PROTOCOL.md §5).

They hold no context, so no memory of a GPU, unless they are to have one on their first device; of
those that see only some devices one for each first device has. They are no sessions: they end with
kvgpud, and the next one starts others. What a driver shows of the devices is settled by cuInit, so
there are some that see all devices, and one for each other choice that programs have had lately.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kvgpu.host.complaints import Complaints
from kvgpu.host.control_frames import WINDOWS, Frame
from kvgpu.host.errors import ConfigError, KvgpuError
from kvgpu.host.inventory import Driver
from kvgpu.host.worker_process import WorkerProcess, start_worker
from kvgpu.host.worker_settings import Devices, WorkerSettings

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
_MOST_CHOICES = 16  # beside all; a worker takes some 130 MiB of the host's memory (driver 580)


GetDriver = Callable[[], Awaitable[Driver]]


@dataclass(frozen=True, slots=True)
class Prestarted:
    process: WorkerProcess
    log: Path  # becomes the session's


class _Choice:
    """Keeps `n` workers ready that see these devices (None: all)."""

    def __init__(self, pool: WorkerPool, devices: Devices | None, n: int) -> None:
        self._pool = pool
        self._devices = devices
        self._n = n
        self._waiting: list[Prestarted] = []
        self._is_short = asyncio.Event()
        self.task = asyncio.create_task(self._keep_full())

    def take(self) -> Prestarted | None:
        if not self._waiting:
            return None
        self._is_short.set()
        return self._waiting.pop(0)

    def close(self) -> None:
        self.task.cancel()
        waited, self._waiting = self._waiting, []
        for worker in waited:
            worker.process.end()
            worker.log.unlink(missing_ok=True)

    async def _keep_full(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                while len(self._waiting) < self._n:
                    await self._add()
                    pause_s = _FIRST_PAUSE_S
            except (KvgpuError, OSError) as error:  # sessions start workers of their own meanwhile
                self._pool.complaints.add(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)
                continue
            self._is_short.clear()
            await self._is_short.wait()
            await asyncio.sleep(_REFILL_PAUSE_S)

    async def _add(self) -> None:
        worker = await self._pool.start_one(self._devices)
        self._waiting.append(worker)
        worker.process.reaped.add_done_callback(lambda _: self._on_end(worker))

    def _on_end(self, worker: Prestarted) -> None:
        if worker in self._waiting:
            self._waiting.remove(worker)
            self._pool.complaints.add(lost(worker))
            asyncio.get_running_loop().call_later(_FIRST_PAUSE_S, self._is_short.set)


class WorkerPool:
    """Keeps `settings.n_prestarted` workers ready that see all devices, and one for each other
    choice of them that sessions have had; 0: none.
    """

    def __init__(self, settings: WorkerSettings, get_driver: GetDriver) -> None:
        self._settings = settings
        self._get_driver = get_driver
        self._choices: dict[Devices | None, _Choice] = {}  # the last session's last
        self._unassigned: set[WorkerProcess] = set()  # those that wait, start or end
        self._contexts: dict[int, WorkerProcess] = {}  # of choices, by their first device
        self._numbers: Iterator[int] = count(1)
        self.complaints = Complaints(_log, "pre-started workers")

    def start(self) -> None:
        for log in self._settings.log_dir.glob("prestarted-*.log"):  # of a kvgpud that was killed
            log.unlink(missing_ok=True)
        if self._settings.n_prestarted:
            self._choices[None] = _Choice(self, None, self._settings.n_prestarted)

    def take(self, window: int, owner: str, devices: Devices | None) -> Prestarted | None:
        """Return one that waits for a session with this window and these devices (None: all), None
        if there is none.
        """
        if window != _WINDOW or not self._choices:
            return None
        choice = self._choice(devices)
        taken = choice.take() if choice and self._settings.may_wait(owner) else None
        if taken:
            self._release(taken.process)
        return taken

    def _release(self, process: WorkerProcess) -> None:
        self._unassigned.discard(process)
        for device in [one for one, other in self._contexts.items() if other is process]:
            del self._contexts[device]

    def _may_have_context(self, devices: Devices | None) -> bool:
        """Say whether the next one with this choice may: programs choose, and are not to fill a
        GPU with contexts that wait.
        """
        return self._settings.have_contexts and (
            devices is None or devices[0] not in self._contexts
        )

    def _choice(self, devices: Devices | None) -> _Choice | None:
        if devices is None:
            return self._choices[None]
        if devices in self._choices:
            choice = self._choices.pop(devices)
        elif n_most := self._settings.share_of_uids(_MOST_CHOICES):
            others = [other for other in self._choices if other is not None]
            for oldest in others[: max(0, len(others) + 1 - n_most)]:
                self._choices.pop(oldest).close()
            choice = _Choice(self, devices, 1)
        else:
            return None
        self._choices[devices] = choice
        return choice

    async def close(self) -> None:
        """End those that have no session."""
        choices, self._choices = list(self._choices.values()), {}
        for choice in choices:
            choice.close()
        if choices:
            await asyncio.wait([choice.task for choice in choices])
        if self._unassigned:
            limit_s = self._settings.grace_s + _KILL_LIMIT_S
            await asyncio.wait([process.reaped for process in self._unassigned], timeout=limit_s)

    async def start_one(self, devices: Devices | None) -> Prestarted:
        """Start one; return once it waits. Raises OSError, KvgpuError."""
        settings = self._settings
        driver = await self._get_driver()
        log = settings.log_dir / f"prestarted-{next(self._numbers)}.log"
        with contextlib.suppress(OSError):  # then it has no log
            settings.log_dir.mkdir(parents=True, exist_ok=True)
        command = [*settings.command(driver, _WINDOW, devices), "--prestart"]
        has_context = self._may_have_context(devices)
        if has_context:
            command.append("--with-context")
        try:
            handle = start_worker(command, None, log, None, settings.confinement(0, None))
        except OSError:
            log.unlink(missing_ok=True)
            raise
        process = WorkerProcess(handle, settings.grace_s, _ignore)
        self._unassigned.add(process)
        if has_context and devices is not None:
            self._contexts[devices[0]] = process
        process.reaped.add_done_callback(lambda _: self._release(process))
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
            raise lost(worker)
        return worker


def lost(worker: Prestarted) -> KvgpuError:
    """Say why one has ended, with its last words; its log goes."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = worker.log.read_text(errors="replace").strip().splitlines()
        worker.log.unlink()
    _, reason = worker.process.failure()
    return ConfigError(": ".join([reason, *lines[-1:]]), hint="sessions start their own")


def _ignore(frame: Frame) -> None:
    _log.warning("a worker without a session sent %s", type(frame.body).__name__)
