# SPDX-License-Identifier: Apache-2.0
"""The frames that tell of devices (PROTOCOL.md §4): DEVICE_QUERY to DEVICE_REPORT, USAGE.

The C++ form of the same facts is protocol/include/kvgpu/device_report.h; a test compares the two.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from kvgpu.host.errors import ProtocolError
from kvgpu.host.frame_body import Body


@dataclass(frozen=True, slots=True)
class DeviceQuery(Body):
    TYPE: ClassVar[int] = 13
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<II")
    device: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process of the asker's VM or run; device_report.h names what is not known."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<IHHQ")
    pid: int
    gpu_percent: int
    memory_percent: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceReport(Body):
    """A device as the asker may see it; behind the struct its processes and its readings."""

    TYPE: ClassVar[int] = 14
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHIIIiIIIQQ16s16s96s32sii")
    READING: ClassVar[struct.Struct] = struct.Struct("<IIQ")
    major: int
    minor: int
    features: int
    device: int
    n_devices: int
    cuda_version: int
    total_bytes: int
    free_bytes: int
    uuid: bytes
    pci_bus_id: bytes
    name: bytes
    driver_release: bytes
    compute_capability: tuple[int, int]
    processes: tuple[DeviceProcess, ...]
    readings: tuple[tuple[int, int], ...]  # of the enum Reading in device_report.h

    def pack(self) -> bytes:
        head = self.LAYOUT.pack(
            *(self.major, self.minor, self.features, self.device, self.n_devices),
            *(self.cuda_version, len(self.processes), len(self.readings), 0),
            *(self.total_bytes, self.free_bytes, self.uuid, self.pci_bus_id, self.name),
            *(self.driver_release, *self.compute_capability),
        )
        processes = (DeviceProcess.LAYOUT.pack(*astuple(process)) for process in self.processes)
        readings = (self.READING.pack(reading, 0, value) for reading, value in self.readings)
        return b"".join([head, *processes, *readings])

    @classmethod
    def unpack(cls, payload: bytes) -> Body:
        head = cls.LAYOUT.unpack_from(payload)
        n_processes, n_readings = head[6:8]
        begin = cls.LAYOUT.size
        middle = begin + n_processes * DeviceProcess.LAYOUT.size
        end = middle + n_readings * cls.READING.size
        if end > len(payload):
            raise ProtocolError(f"DeviceReport: {len(payload)} of {end} payload bytes")
        processes = DeviceProcess.LAYOUT.iter_unpack(payload[begin:middle])
        readings = cls.READING.iter_unpack(payload[middle:end])
        texts = (text.rstrip(b"\0") for text in head[12:15])
        parts: list[Any] = [*head[:6], *head[9:12], *texts, (head[15], head[16])]
        parts.append(tuple(DeviceProcess(*process) for process in processes))
        parts.append(tuple((reading, value) for reading, _, value in readings))
        return cls(*parts)


@dataclass(frozen=True, slots=True)
class UsageQuery(Body):
    TYPE: ClassVar[int] = 26


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What a session uses of a device; `total_bytes` 0: it has no context there."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<QQQ")
    own_bytes: int
    free_bytes: int  # as cuMemGetInfo says there
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Usage(Body):
    """One entry for each of the worker's devices, up to the end of the payload."""

    TYPE: ClassVar[int] = 27
    devices: tuple[DeviceUsage, ...]

    def pack(self) -> bytes:
        return b"".join(DeviceUsage.LAYOUT.pack(*astuple(device)) for device in self.devices)

    @classmethod
    def unpack(cls, payload: bytes) -> Body:
        whole = len(payload) - len(payload) % DeviceUsage.LAYOUT.size
        entries = DeviceUsage.LAYOUT.iter_unpack(payload[:whole])
        return cls(tuple(DeviceUsage(*entry) for entry in entries))
