# SPDX-License-Identifier: Apache-2.0
"""One session: a client process, its block and extents of a region, and its worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvgpu.host import cuda_errors
from kvgpu.host.activity_frames import Activity, ActivityQuery
from kvgpu.host.complaints import Complaints, plain
from kvgpu.host.control_frames import (
    FEATURE_BYTE_STREAM,
    FEATURE_DOORBELL,
    FEATURES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Assign,
    Closed,
    Extent,
    ExtentAlloc,
    ExtentFree,
    Frame,
    Open,
    Opened,
    Resolve,
    Resolved,
)
from kvgpu.host.device_frames import DeviceUsage, Usage
from kvgpu.host.ivshmem.allocator import BLOCK_BYTES
from kvgpu.host.ivshmem.doorbells import register_value
from kvgpu.host.ivshmem.region import Region
from kvgpu.host.messages import SessionInfo
from kvgpu.host.orphans import Orphan
from kvgpu.host.processes import start_ticks
from kvgpu.host.session_store import SessionRecord, SessionStore, scope_of
from kvgpu.host.shares import Shares
from kvgpu.host.stream_relay import StreamRelay
from kvgpu.host.usage_meter import UsageMeter
from kvgpu.host.worker_pool import Prestarted
from kvgpu.host.worker_process import WorkerProcess, start_worker
from kvgpu.host.worker_settings import WorkerSettings

_log = logging.getLogger(__name__)
_ACTIVITY_LIMIT_S = 1.0  # a worker answers at once, whatever its driver does; an older one never


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose session it is, as far as the next kvgpud must know."""

    name: str  # the VM's, or "host"
    boot_id: bytes = b""  # the VM's
    client_start_ticks: int = 0  # a process of this host


class Session:
    """A client process and its worker."""

    def __init__(
        self,
        number: int,
        owner: Owner,
        region: Region,
        block_offset: int,
        request: Open,
        log: Path,
        store: SessionStore,
        shares: Shares,
    ) -> None:
        self.number = number
        self.owner = owner
        self.region = region
        self.request = request
        self.log = log
        self.started_at_s = time.time()
        self.state = "starting"
        self.block_offset = block_offset
        self.devices: tuple[int, ...] = ()  # that its worker has, by the host's ordinals
        self.doorbell = 0  # of the region's; 0: it has none
        self.worker: WorkerProcess | None = None
        self.relay: StreamRelay | None = None  # where the client shares no memory with the worker
        self.gone = asyncio.Event()
        self._store = store
        self._shares = shares
        self._extents: dict[int, tuple[int, int]] = {}  # offset -> bytes, worker's request
        self._answering: set[asyncio.Task[None]] = set()
        self._why_ended: tuple[int, str] | None = None
        self._complaints = Complaints(_log, f"session {number}")
        self._meter = UsageMeter(self._send)
        self._activity: asyncio.Future[Activity] | None = None  # asked for

    @property
    def comm(self) -> str:
        """The client's process name; it chose that itself, so only plain characters are kept."""
        return plain(self.request.comm.split(b"\0")[0].decode("ascii", "replace")) or "?"

    @property
    def scope(self) -> str:
        """Who may have what this session shares: its VM; on the host, its user."""
        return scope_of(bool(self.owner.boot_id), self.region.uuid, self.request.uid)

    @property
    def is_byte_stream(self) -> bool:
        return bool(self.request.features & FEATURE_BYTE_STREAM)

    def start(self, command: list[str], settings: WorkerSettings) -> None:
        """Start the worker. Raises OSError, KvgpuError."""
        extra: socket.socket | None
        if self.is_byte_stream:
            ours, extra = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.relay = StreamRelay(ours, self.number)
            command = [*command, "--stream"]
        else:
            extra = self._store.listen(self.number)
        with extra or contextlib.nullcontext():
            kick_fd = self._take_doorbell()
            # Made only now: from here on start_worker() sees to its release.
            confinement = settings.confinement(self.region.size_bytes, self.scope)
            handle = start_worker(command, self.region.fd, self.log, extra, confinement, kick_fd)
        self.worker = WorkerProcess(handle, settings.grace_s, self._on_worker_request)

    def take(self, prestarted: Prestarted) -> None:
        """Take a worker that waits for a session. Raises OSError."""
        self.worker = prestarted.process
        self.worker.confinement.allow_memory(self.region.size_bytes)
        self.worker.confinement.give_to(self.scope)
        kick_fd = self._take_doorbell()
        if kick_fd is not None:
            self.worker.replace_kick_fd(kick_fd)
        away_s = self._store.away_limit_s
        body = Assign(
            *(PROTOCOL_MAJOR, PROTOCOL_MINOR, away_s, self.region.size_bytes, self.block_offset)
        )
        with self._store.listen(self.number) or contextlib.nullcontext() as listener:
            fds = [self.region.fd, self.worker.kick_fd]
            fds += [listener.fileno()] if listener else []
            self.worker.assign(Frame(body, self.number), fds, self._on_worker_request)
        try:
            prestarted.log.rename(self.log)
        except OSError as error:
            _log.error("session %d: its log is lost: %s", self.number, error)

    def resume(self, orphan: Orphan, grace_s: float) -> None:
        """Go on with what an earlier kvgpud began."""
        record = orphan.record
        self.started_at_s = record.started_at_s
        self.region.take_block(record.block_offset)
        for offset, (size_bytes, _) in record.extents.items():
            self.region.take_extent(offset, size_bytes)
        self._extents = dict(record.extents)
        if record.doorbell and self.region.doorbells:
            self.doorbell = self.region.doorbells.take(record.doorbell)
        self.worker = WorkerProcess(orphan.worker, grace_s, self._on_worker_request)
        self.worker.is_ready = record.is_ready
        self.devices = record.devices
        self.state = "running"
        if not orphan.answers or not record.is_ready:
            self.end((cuda_errors.UNKNOWN, "kvgpud was restarted and the worker did not answer"))

    def save(self) -> None:
        """Write down what the next kvgpud must know. Raises OSError."""
        if self.is_byte_stream:
            return  # it ends with this one
        assert self.worker
        self._store.save(
            SessionRecord(
                session=self.number,
                vm=self.owner.name,
                region=self.region.uuid,
                region_inode=self.region.inode,
                block_offset=self.block_offset,
                extents=self._extents,
                doorbell=self.doorbell,
                devices=self.devices,
                features=self.request.features,
                window=self.request.window,
                pid=self.request.pid,
                uid=self.request.uid,
                comm=self.comm.encode(),
                boot_id=self.owner.boot_id.hex(),
                client_start_ticks=self.owner.client_start_ticks,
                worker_pid=self.worker.pid,
                worker_start_ticks=start_ticks(self.worker.pid),
                worker_uid=self.worker.confinement.uid,
                started_at_s=self.started_at_s,
                is_ready=self.worker.is_ready,
            )
        )

    def opened(self) -> Opened:
        features = (FEATURES | FEATURE_BYTE_STREAM) & self.request.features
        if not self.doorbell:
            features &= ~FEATURE_DOORBELL
        return Opened(
            *(PROTOCOL_MAJOR, PROTOCOL_MINOR, features),
            *(self.number, register_value(self.doorbell)),
            *(self.block_offset, BLOCK_BYTES, self.region.size_bytes),
        )

    def closed(self) -> Closed:
        """Say why the session has ended."""
        return Closed(*self.why_ended())

    def why_ended(self) -> tuple[int, str]:
        """Return CUresult and reason: those given to `end`, else what became of the worker."""
        if self._why_ended:
            return self._why_ended
        if self.worker:
            return self.worker.failure()
        return cuda_errors.UNKNOWN, "the session was ended before its worker started"

    def kick(self) -> None:
        if self.worker:
            self.worker.kick()

    async def usage(self) -> tuple[DeviceUsage, ...]:
        """Return what it uses of each device now, by its worker's word."""
        return await self._meter.measure()

    async def activity(self) -> Activity | None:
        """Return what it has done, by its worker's word; None: that does not answer."""
        if self._activity is None:
            self._activity = asyncio.get_running_loop().create_future()
            self._send(Frame(ActivityQuery()))
        asked = self._activity
        await asyncio.wait([asked], timeout=_ACTIVITY_LIMIT_S)
        return asked.result() if asked.done() else None

    def end(self, why: tuple[int, str] | None = None) -> None:
        """Begin to end the session; `gone` is set once nothing of it is left."""
        if self.state == "ending":
            return
        self.state = "ending"
        self._why_ended = why
        if self.worker:
            self.worker.end()

    def free(self) -> None:
        """Give everything back to the region; the worker must have been reaped."""
        if self.region.fd >= 0:
            self.region.free_block(self.block_offset)
            self.region.free_extents(self._extents)
        self._extents.clear()
        for task in self._answering:
            task.cancel()
        if self.doorbell and self.region.doorbells:
            self.region.doorbells.give_back(self.doorbell)
        self._store.remove(self.number)
        self._shares.forget(self)
        if self.relay:
            self.relay.close()
        self.state = "ending"
        self.gone.set()

    def hold_extent(self, other: Session, offset: int) -> bool:
        """Keep an extent of `other` for as long as this session has it; False: it cannot."""
        found = other._extents.get(offset)
        streams = self.is_byte_stream or other.is_byte_stream  # where each has a region of its own
        if found is None or streams or self.region is not other.region:
            return False
        if offset not in self._extents:
            self.region.hold_extent(offset)
            self._extents[offset] = (found[0], 0)
            self._save_or_end()
        return True

    def info(self) -> SessionInfo:
        return SessionInfo(
            session=self.number,
            name=f"{self.comm}-{self.number}",
            vm=self.owner.name,
            region=str(self.region.uuid),
            pid=self.request.pid,
            uid=self.request.uid,
            comm=self.comm,
            worker_pid=self.worker.pid if self.worker else 0,
            state=self.state,
            started_at_s=self.started_at_s,
            pinned_bytes=sum(size_bytes for size_bytes, _ in self._extents.values()),
            doorbell=self.doorbell,
            log=str(self.log),
        )

    def _send(self, frame: Frame) -> None:
        if self.worker:
            self.worker.send(frame)

    def _take_doorbell(self) -> int | None:
        """Return the eventfd that the client rings itself, None if its region has none."""
        if not self.region.doorbells:
            return None
        self.doorbell = self.doorbell or self.region.doorbells.take()
        return self.region.doorbells.eventfd(self.doorbell)

    def _on_worker_request(self, frame: Frame) -> None:
        assert self.worker
        match frame.body:
            case ExtentAlloc(size_bytes=size_bytes):
                task = asyncio.create_task(self._answer(size_bytes, frame.id))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case ExtentFree(offset=offset):
                self._free_extent(offset)
                self.worker.send(Frame(Extent(offset, 0), frame.id))
            case Usage() as usage:
                self._meter.on_answer(usage)
            case Activity() as activity:
                if self._activity and not self._activity.done():
                    self._activity.set_result(activity)
                self._activity = None
            case Resolve() as question:
                self._shares.ask(self, frame.id, question)
            case Resolved():
                self._shares.answer(self, frame)
            case body:
                _log.error("session %d: worker sent %s, ended", self.number, body)
                self.end((cuda_errors.UNKNOWN, "the worker broke the protocol"))

    async def _answer(self, size_bytes: int, request: int) -> None:
        """Tell the worker what pinned memory it gets, once others' is free again if need be."""
        assert self.worker
        found = await self.region.when_freed(partial(self._allocate, size_bytes, request))
        if found is None:
            self._complaints.add(
                "out of pinned memory; `kvgpu vm xml --pinned` or `kvgpu run --pinned` gives more"
            )
        self.worker.send(Frame(found or Extent(0, 0), request))

    def _allocate(self, size_bytes: int, request: int) -> Extent | None:
        for offset, (given_bytes, given_for) in self._extents.items():
            if given_for == request:  # by an earlier kvgpud, whose answer was lost
                return Extent(offset, given_bytes)
        found = self.region.allocate_extent(size_bytes)
        if found is None:
            return None
        self._extents[found[0]] = (found[1], request)
        self._save_or_end()
        return Extent(*found)

    def _free_extent(self, offset: int) -> None:
        # Freed already: an earlier kvgpud did that, and its answer was lost.
        if self._extents.pop(offset, None):
            self.region.free_extents([offset])
            self._save_or_end()

    def _save_or_end(self) -> None:
        try:
            self.save()
        except OSError as error:
            _log.error("session %d: cannot be written down, ended: %s", self.number, error)
            self.end((cuda_errors.OPERATING_SYSTEM, f"the host cannot keep its state: {error}"))
