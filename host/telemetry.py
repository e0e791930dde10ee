# SPDX-License-Identifier: Apache-2.0
"""What the host's NVML says of its devices: temperature, power, clocks, what each worker uses.

Asked in a child process (`kvgpu-worker --telemetry`) with a time limit, as the driver itself is
(inventory.py): NVML hangs where the driver does. The child lives while somebody asks. The software
GPU has no NVML: then nothing is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvgpu.host.complaints import plain
from kvgpu.host.inventory import worker_environment

_log = logging.getLogger(__name__)

_WAIT_S = 2.5  # less than the guest's library waits for kvgpud (its library.cpp)
_LIMIT_S = 30.0  # until it counts as hung
_FRESH_S = 0.5  # NVML itself averages power and utilisation over longer
_IDLE_S = 30.0  # after the last question the child ends
_PAUSE_S = 60.0  # after a failure
_KILL_LIMIT_S = 2.0
_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """A process's share of the device in the last seconds."""

    gpu_percent: int
    memory_percent: int


@dataclass(frozen=True, slots=True)
class Link:
    """An NVLink: `facts` is LinkFacts of device_report.h, without the device at the other end."""

    number: int
    facts: int
    remote_uuid: str  # as 32 digits; empty: a switch, or a device that this host does not see


@dataclass(frozen=True, slots=True)
class DeviceTelemetry:
    readings: tuple[tuple[int, int], ...] = ()  # of the enum Reading in device_report.h
    used_bytes: dict[int, int] = field(default_factory=dict)  # of the host's processes, by pid
    loads: dict[int, Load] | None = None  # likewise; None: the device does not say
    link_mbps: int = 0  # 0: not known
    links: tuple[Link, ...] = ()
    peers: dict[str, int] = field(default_factory=dict)  # PeerFacts of device_report.h, by UUID


@dataclass(frozen=True, slots=True)
class Sample:
    driver_release: str = ""
    devices: dict[str, DeviceTelemetry] = field(default_factory=dict)  # by UUID, as 32 digits


NOTHING = Sample()


class Telemetry:
    """Samples of the NVML beside a driver, at most two a second, shared by all who ask."""

    def __init__(self, worker: Path) -> None:
        self._worker = worker
        self._child: asyncio.subprocess.Process | None = None
        self._taking: asyncio.Task[Sample] | None = None
        self._last = NOTHING
        self._fresh_until_s = 0.0
        self._is_late = False  # who asks gets nothing, at once
        self._ending: asyncio.Task[None] | None = None

    async def sample(self, driver: Path) -> Sample:
        """Return what is known now, nothing where there is no NVML or it does not answer yet."""
        if time.monotonic() < self._fresh_until_s or not _nvml_beside(driver).is_file():
            return self._last
        if self._taking is None or self._taking.done():
            self._is_late = False
            self._taking = asyncio.create_task(self._take(driver))
        if self._is_late:
            return NOTHING
        try:
            async with asyncio.timeout(_WAIT_S):
                return await asyncio.shield(self._taking)
        except TimeoutError:
            self._is_late = True
            return NOTHING

    async def close(self) -> None:
        """End the child. One that sleeps in the kernel (a GPU that is lost) is left alone."""
        for task in (self._ending, self._taking):
            if task:
                task.cancel()
                await asyncio.wait([task])
        await self._kill()

    async def _kill(self) -> None:
        child = self._child
        if child is None:
            return
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_LIMIT_S):
                await child.communicate(b"")  # closes its pipes, too
                self._child = None

    async def _take(self, driver: Path) -> Sample:
        try:
            async with asyncio.timeout(_LIMIT_S):
                self._last = _parse(await self._ask(driver))
        except (OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            what = f"no answer within {_LIMIT_S:g} s" if isinstance(error, TimeoutError) else error
            _log.warning("NVML of the host: %s; asked again in %g s", what, _PAUSE_S)
            await self._kill()
            self._last = NOTHING
            self._fresh_until_s = time.monotonic() + _PAUSE_S
        else:
            self._fresh_until_s = time.monotonic() + _FRESH_S
            self._ending = asyncio.create_task(self._end_when_idle())
        return self._last

    async def _ask(self, driver: Path) -> bytes:
        if self._ending:
            self._ending.cancel()
        if self._child and self._child.returncode is not None:
            await self._kill()
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                *(str(self._worker), "--telemetry", "--driver", str(driver)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=worker_environment(),
                limit=_MAX_LINE_BYTES,
            )
        child = self._child
        assert child.stdin
        assert child.stdout
        child.stdin.write(b"\n")
        await child.stdin.drain()
        line = await child.stdout.readline()
        if not line:
            raise OSError("it ended; its reason stands above")
        return line

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(_IDLE_S)
        await self._kill()


def _nvml_beside(driver: Path) -> Path:
    return driver.with_name("libnvidia-ml.so.1")


def _parse(line: bytes) -> Sample:
    """Read what kvgpu-worker printed. Raises ValueError, KeyError, TypeError."""
    said: dict[str, Any] = json.loads(line)
    return Sample(
        plain(str(said["driver_release"])),
        {_digits(device["uuid"]): _parse_device(device) for device in said["devices"]},
    )


def _parse_device(device: dict[str, Any]) -> DeviceTelemetry:
    loads = device["utilisation"]
    return DeviceTelemetry(
        tuple((int(reading), int(value)) for reading, value in device["readings"]),
        {int(pid): int(used) for pid, used in device["processes"] or ()},
        None if loads is None else {int(pid): Load(int(gpu), int(mem)) for pid, gpu, mem in loads},
        int(device["link_mbps"]),
        tuple(Link(int(n), int(facts), _digits(uuid)) for n, facts, uuid in device["links"]),
        {_digits(uuid): int(facts) for uuid, facts in device["peers"]},
    )


def _digits(uuid: object) -> str:
    return str(uuid).removeprefix("GPU-").replace("-", "").lower()
