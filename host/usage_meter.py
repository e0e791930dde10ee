# SPDX-License-Identifier: Apache-2.0
"""Asks a worker what its session uses of the devices (PROTOCOL.md §4, USAGE_QUERY)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from kvgpu.host.control_frames import (
    Frame,
)
from kvgpu.host.device_frames import DeviceUsage, Usage, UsageQuery

_LIMIT_S = 0.2  # a driver that is busy with a long call does not keep NVML waiting
_INTERVAL_S = 0.005  # between two measurements, whoever asks for them


class UsageMeter:
    """One worker's answers. Who asks gets a measurement that began after that.

    A worker that has not answered (its driver is busy, or it is older than this frame) is not asked
    again until it does; meanwhile its last answer stands.
    """

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send
        self._last: tuple[DeviceUsage, ...] = ()
        self._next: asyncio.Task[tuple[DeviceUsage, ...]] | None = None  # not sent yet
        self._asked: asyncio.Future[None] | None = None  # sent, not answered
        self._asked_at_s = 0.0

    async def measure(self) -> tuple[DeviceUsage, ...]:
        """Return an entry per device of the worker; none while nothing is known."""
        if self._asked and time.monotonic() > self._asked_at_s + _LIMIT_S:
            return self._last
        if self._next is None:
            self._next = asyncio.create_task(self._measure())
        return await asyncio.shield(self._next)

    def on_answer(self, usage: Usage) -> None:
        self._last = usage.devices
        if self._asked and not self._asked.done():
            self._asked.set_result(None)
        self._asked = None

    async def _measure(self) -> tuple[DeviceUsage, ...]:
        if self._asked:
            await asyncio.wait([self._asked], timeout=_LIMIT_S)
        pause_s = self._asked_at_s + _INTERVAL_S - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._next = None  # who asks from here on wants a later one
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._asked_at_s = time.monotonic()
            self._send(Frame(UsageQuery()))
            await asyncio.wait([self._asked], timeout=_LIMIT_S)
        return self._last
