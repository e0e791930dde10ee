# SPDX-License-Identifier: Apache-2.0
"""Answers DEVICE_QUERY: a device as a VM, or a `kvgpu run`, may see it.

What belongs to others is not in it: processes, memory and utilisation are those of the asker's own
sessions, by the guest's process numbers. `free_bytes` is what cuMemGetInfo says in one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from kvgpu.host import cuda_errors
from kvgpu.host.control_frames import (
    FEATURES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
)
from kvgpu.host.device_frames import DeviceProcess, DeviceQuery, DeviceReport, DeviceUsage
from kvgpu.host.errors import KvgpuError, SessionError
from kvgpu.host.inventory import Driver
from kvgpu.host.session import Session
from kvgpu.host.telemetry import DeviceTelemetry, Sample, Telemetry

# As in protocol/include/kvgpu/device_report.h.
_PERCENT_UNKNOWN = 0xFFFF
_GPU_PERCENT, _MEMORY_PERCENT = 1, 2
_LINK_MBPS, _LINK, _PEER = 48, 64, 96
_MAX_LINKS, _MAX_PEERS = 18, 16
_MAX_READINGS = 128  # what a frame has room for, beside 64 processes and the ways to others
_MAX_U64 = (1 << 64) - 1
_DRIVER_LIMIT_S = 5.0  # a driver that nobody has used since the boot takes seconds


class DeviceReports:
    """What all askers share: the driver's inventory, and samples of its NVML."""

    def __init__(self, worker: Path, get_driver: Callable[[], Awaitable[Driver]]) -> None:
        self._get_driver = get_driver
        self._telemetry = Telemetry(worker)

    async def close(self) -> None:
        await self._telemetry.close()

    async def report(self, query: DeviceQuery, sessions: Sequence[Session]) -> DeviceReport:
        """Describe a device to the owner of `sessions`. Raises SessionError."""
        driver = await self._driver()
        if query.device >= len(driver.devices):
            reason = f"there is no device {query.device}"
            hint = "see `kvgpu gpu list` on the host"
            raise SessionError(cuda_errors.INVALID_DEVICE, reason, hint=hint)
        running = [session for session in sessions if session.state == "running"]
        sample, usages = await asyncio.gather(
            self._telemetry.sample(driver.path),
            asyncio.gather(*(session.usage() for session in running)),
        )
        return _report(query.device, driver, sample, dict(zip(running, usages, strict=True)))

    async def _driver(self) -> Driver:
        try:
            async with asyncio.timeout(_DRIVER_LIMIT_S):
                return await self._get_driver()
        except TimeoutError as error:
            reason = "the driver does not answer yet"
            hint = "see `kvgpu host status` on the host"
            raise SessionError(cuda_errors.SYSTEM_NOT_READY, reason, hint=hint) from error
        except KvgpuError as error:
            raise SessionError(cuda_errors.NO_DEVICE, error.message, hint=error.hint) from error


def _report(
    ordinal: int,
    driver: Driver,
    sample: Sample,
    usages: dict[Session, tuple[DeviceUsage, ...]],
) -> DeviceReport:
    device = driver.devices[ordinal]
    telemetry = sample.devices.get(device["uuid"], DeviceTelemetry())
    here = {
        session: own
        for session, usage in usages.items()
        for device, own in zip(session.devices, usage, strict=False)
        if device == ordinal and own.total_bytes
    }
    total_bytes = device["total_bytes"]
    return DeviceReport(
        *(PROTOCOL_MAJOR, PROTOCOL_MINOR, FEATURES),
        device=ordinal,
        n_devices=len(driver.devices),
        cuda_version=driver.version,
        total_bytes=total_bytes,
        free_bytes=min([total_bytes, *(usage.free_bytes for usage in here.values())]),
        uuid=bytes.fromhex(device["uuid"]),
        pci_bus_id=device["pci_bus_id"].encode(),
        name=device["name"].encode()[:95],
        driver_release=sample.driver_release.encode()[:31],
        compute_capability=_capability(device),
        processes=tuple(
            _process(session, usage.own_bytes, telemetry) for session, usage in here.items()
        ),
        readings=(
            *_readings(telemetry, list(here)),
            *_ways(telemetry, [known["uuid"] for known in driver.devices]),
        ),
    )


def _capability(device: dict[str, Any]) -> tuple[int, int]:
    major, _, minor = device["compute_capability"].partition(".")
    return int(major), int(minor)


def _process(session: Session, own_bytes: int, telemetry: DeviceTelemetry) -> DeviceProcess:
    assert session.worker
    pid = session.worker.pid
    load = (telemetry.loads or {}).get(pid)
    unknown = _PERCENT_UNKNOWN if telemetry.loads is None else 0
    return DeviceProcess(
        pid=session.request.pid,
        gpu_percent=load.gpu_percent if load else unknown,
        memory_percent=load.memory_percent if load else unknown,
        # NVML's figure holds what the driver needs for the context, too, as natively.
        used_bytes=telemetry.used_bytes.get(pid, own_bytes),
    )


def _readings(
    telemetry: DeviceTelemetry, sessions: Sequence[Session]
) -> tuple[tuple[int, int], ...]:
    readings = [reading for reading in telemetry.readings if 0 <= reading[1] <= _MAX_U64]
    if telemetry.loads is not None:
        pids = [session.worker.pid for session in sessions if session.worker]
        loads = [telemetry.loads[pid] for pid in pids if pid in telemetry.loads]
        gpu_percent = min(100, sum(load.gpu_percent for load in loads))
        memory_percent = min(100, sum(load.memory_percent for load in loads))
        readings += [(_GPU_PERCENT, gpu_percent), (_MEMORY_PERCENT, memory_percent)]
    return tuple(readings[-_MAX_READINGS:])


def _ways(telemetry: DeviceTelemetry, own: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the readings of what leads from a device to others of `own`, the asker's by UUID."""
    if len(own) < 2:
        return ()
    links = []
    for link in telemetry.links:
        is_own = link.remote_uuid in own
        if link.number < _MAX_LINKS and (is_own or not link.remote_uuid):
            remote_device = own.index(link.remote_uuid) + 1 if is_own else 0
            links.append(
                (_LINK + link.number, link.facts & ~(0xFF << 32) & _MAX_U64 | remote_device << 32)
            )
    speed = [(_LINK_MBPS, telemetry.link_mbps)] if links and telemetry.link_mbps else []
    peers = [
        (_PEER + device, telemetry.peers[uuid] & _MAX_U64)
        for device, uuid in enumerate(own[:_MAX_PEERS])
        if uuid in telemetry.peers
    ]
    return (*speed, *links, *peers)
