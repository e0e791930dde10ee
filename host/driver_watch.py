# SPDX-License-Identifier: Apache-2.0
"""Looks for a driver when kvgpud starts and, while there is none that works, again and again."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from kvgpu.host.errors import ConfigError, KvgpuError
from kvgpu.host.inventory import Asker, Driver, choose_driver

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 5.0
_LAST_PAUSE_S = 60.0


class DriverWatch:
    """The driver that workers load. Sessions and status wait for the first answer, no longer.

    libvirt's hook cannot wait: a driver that nobody has used since the boot takes seconds.
    """

    def __init__(self, setting: str, worker: Path, timeout_s: float) -> None:
        self._setting = setting
        self._asker = Asker(worker, timeout_s)
        self._answered = asyncio.Event()
        self._driver: Driver | None = None
        self._error: KvgpuError = ConfigError("the driver has not been asked yet")
        self._task = asyncio.create_task(self._look())

    async def get(self) -> Driver:
        """Return the driver. Raises KvgpuError with the reason and a hint while there is none."""
        await self.wait()
        if self._driver is None:
            raise self._error
        return self._driver

    async def wait(self) -> None:
        """Return after the first answer, whatever it is."""
        await self._answered.wait()

    @property
    def has_answered(self) -> bool:
        return self._answered.is_set()

    def devices_now(self) -> list[dict[str, Any]]:
        """Return the devices, none while they are not known."""
        return self._driver.devices if self._driver else []

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _look(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                self._driver = await choose_driver(self._setting, self._asker)
            except (KvgpuError, OSError) as error:
                self._keep(error)
            self._answered.set()
            if self._driver:
                n_devices = len(self._driver.devices)
                _log.info("driver %s, %d device(s)", self._driver.path, n_devices)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _keep(self, error: KvgpuError | OSError) -> None:
        if str(error) != str(self._error):
            _log.error("no driver: %s", error)
        if isinstance(error, OSError):
            error = ConfigError(f"the driver cannot be asked: {error}", hint="install kvgpu-host")
        self._error = error
