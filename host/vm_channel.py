# SPDX-License-Identifier: Apache-2.0
"""The control channel of one VM: kvgpud connects to the socket QEMU listens on for the VM's port.

Everything the guest sends is hostile: a session number counts only if it is one of this VM.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from kvgpu.host import cuda_errors
from kvgpu.host.complaints import Complaints
from kvgpu.host.control_frames import (
    FEATURES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Close,
    Closed,
    Frame,
    Hello,
    Kick,
    Open,
    Ping,
    Pong,
    Refused,
    Sessions,
    StreamDecoder,
    StreamForm,
    Welcome,
)
from kvgpu.host.device_frames import DeviceQuery
from kvgpu.host.errors import KvgpuError, RegionError, SessionError
from kvgpu.host.ivshmem.region import Region
from kvgpu.host.orphans import Orphan
from kvgpu.host.pace import Pace
from kvgpu.host.session import Owner, Session
from kvgpu.host.sessions import SessionBroker, check_version

_log = logging.getLogger(__name__)

_RETRY_S = 0.25
_QEMU_LIMIT_S = 10.0  # a QEMU that has not been there for so long has ended
_READ_BYTES = 64 << 10
_BURST_PIECES = 64  # that many at a time are never slowed down
_MAX_PIECES_PER_S = 5000
_MAX_QUERIES = 64  # of devices, at a time
_MAX_UNREAD_BYTES = 256 << 10  # answers a guest leaves unread before it is cut off


# Opens the byte stream to the VM's agent; an OSError means: not there yet.
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class VmChannel:
    """Keeps the connection while the VM is known; a lost connection ends the VM's sessions.

    If `check_isolation` raises RegionError the VM is not served: there is no connection at all.
    """

    def __init__(
        self,
        broker: SessionBroker,
        vm: str,
        connect: Connect,
        region: Region,
        check_isolation: Callable[[], Awaitable[None]],
        orphans: Sequence[Orphan] = (),
    ) -> None:
        self.state = "waiting"
        self.sessions: dict[int, Session] = {}
        self.n_kicks = 0
        self._broker = broker
        self._vm = vm
        self._connect = connect
        self._region = region
        self._check_isolation = check_isolation
        self._complaints = Complaints(_log, vm)
        self._pace = Pace(_BURST_PIECES, _MAX_PIECES_PER_S)
        self._boot_id = b""
        self._unconfirmed: set[int] = set()  # taken up; the agent has not yet said that it has them
        self._opening: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._turn = asyncio.Lock()  # of the sessions whose data waits for room in the channel
        self._look_now = asyncio.Event()
        for orphan in orphans:
            self._resume(orphan)
        self._task = asyncio.create_task(self._run())

    def look_now(self) -> None:
        """Try to connect at once: QEMU has started."""
        self._look_now.set()

    async def close(self) -> None:
        """Hang up and end the VM's sessions; return when nothing is left of them."""
        await self.leave()
        await self._broker.end(list(self.sessions.values()))

    async def leave(self) -> None:
        """Hang up; the sessions that share memory with the VM go on for the next kvgpud."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._end_opening()
        await self._broker.end([s for s in self.sessions.values() if s.is_byte_stream])

    def _resume(self, orphan: Orphan) -> None:
        orphan.close_region()  # the VM's has a name
        self._boot_id = bytes.fromhex(orphan.record.boot_id)
        owner = Owner(self._vm, self._boot_id)
        session = self._broker.resume(orphan, owner, self._region, self._on_session_end)
        self.sessions[session.number] = session
        self._unconfirmed.add(session.number)

    async def _run(self) -> None:
        if not await self._is_isolated():
            self.state = "refused"
            await self._end_sessions()
            return
        deadline_s = time.monotonic() + _QEMU_LIMIT_S
        while True:
            try:
                reader, self._writer = await self._connect()
            except OSError:
                self._look_now.clear()
                try:
                    async with asyncio.timeout(_RETRY_S):
                        await self._look_now.wait()
                except TimeoutError:
                    pass
                if self.sessions and time.monotonic() > deadline_s:
                    _log.info("%s: no QEMU listens, its sessions end", self._vm)
                    await self._end_sessions()
                continue
            try:
                await self._serve(reader)
            except OSError as error:
                _log.info("%s: channel: %s", self._vm, error)
            finally:
                self._writer.transport.abort()
                self._writer = None
                self.state = "waiting"
            _log.info("%s: channel closed", self._vm)
            self._boot_id = b""
            await self._end_sessions()

    async def _is_isolated(self) -> bool:
        # A VM that is taken up has not passed through "prepare" of this kvgpud.
        try:
            await self._check_isolation()
        except RegionError as error:
            _log.error("%s: not served: %s", self._vm, error)
            return False
        except KvgpuError as error:  # no driver: each OPEN is refused with the reason
            _log.info("%s: %s", self._vm, error)
        return True

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        self.state = "connected"
        _log.info("%s: channel connected", self._vm)
        decoder = StreamDecoder(self._vm)
        self._send(Frame(Ping()))  # an agent that was there before kvgpud says HELLO again
        while data := await reader.read(_READ_BYTES):
            n_before = decoder.n_pieces
            for frame in decoder.feed(data):
                await self._on_frame(frame)
            # The rest waits in the socket. A part of a frame is work, too.
            await asyncio.sleep(self._pace.count(max(1, decoder.n_pieces - n_before)))

    async def _on_frame(self, frame: Frame) -> None:
        match frame.body:
            case Hello() as hello:
                await self._on_hello(hello)
            case Open() as request:
                task = asyncio.create_task(self._open(request, frame.id))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            case DeviceQuery() as query:
                self._begin_answer(query, frame.id)
            case Sessions(numbers=numbers):
                self._confirm(numbers)
            case Kick() if frame.id not in self.sessions:
                # One that has ended while its agent or kvgpud was away.
                reason = "the session ended while kvgpud was away"
                self._send(Frame(Closed(cuda_errors.UNKNOWN, reason), frame.id))
            case Close() if frame.id in self.sessions:
                self.sessions[frame.id].end()
            case Kick():
                self.n_kicks += 1
                self.sessions[frame.id].kick()
            case Close() | Pong():
                pass  # of a session that has ended meanwhile
            case StreamForm() if frame.id in self.sessions:
                await self._pass_on(self.sessions[frame.id], frame)
            case StreamForm():
                pass  # as above
            case Ping():
                self._send(Frame(Pong(), frame.id))
            case body:
                _log.debug("%s: %s ignored", self._vm, body)

    async def _on_hello(self, hello: Hello) -> None:
        try:
            check_version(hello.major, "guest")
        except SessionError as error:
            self._complaints.add(error)
            self._send(Frame(Refused(error.cuda_error, str(error))))
            return
        if hello.boot_id != self._boot_id:
            # The guest has booted anew: whoever held the older sessions is gone.
            await self._end_sessions()
            self._boot_id = hello.boot_id
        self.state = "ready"
        self._send(
            Frame(
                Welcome(
                    *(PROTOCOL_MAJOR, PROTOCOL_MINOR, FEATURES & hello.features),
                    *(self._region.size_bytes, self._region.uuid.bytes),
                )
            )
        )
        self._send(Frame(await self._broker.facts()))

    def _confirm(self, numbers: tuple[int, ...]) -> None:
        """End what was taken up and belongs to no process: its OPENED was lost."""
        for number in self._unconfirmed.difference(numbers):
            if number in self.sessions:
                _log.info("session %d: the VM's agent does not know it, ended", number)
                self.sessions[number].end()
        self._unconfirmed.clear()

    async def _open(self, request: Open, request_number: int) -> None:
        owner = Owner(self._vm, self._boot_id)
        try:
            session = await self._broker.open(request, owner, self._region, self._on_session_end)
        except SessionError as error:
            self._complaints.add(f"session refused: {error}")
            self._send(Frame(Refused(error.cuda_error, str(error)), request_number))
            return
        self.sessions[session.number] = session
        self._send(Frame(session.opened(), request_number))
        if session.relay:
            session.relay.start(
                self._send_data, lambda why: session.end((cuda_errors.UNKNOWN, why))
            )

    def _begin_answer(self, query: DeviceQuery, request_number: int) -> None:
        if len(self._answering) >= _MAX_QUERIES:
            busy = Refused(cuda_errors.SYSTEM_NOT_READY, f"{_MAX_QUERIES} queries wait already")
            self._send(Frame(busy, request_number))
            return
        task = asyncio.create_task(self._answer(query, request_number))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, query: DeviceQuery, request_number: int) -> None:
        self._send(Frame(await self._broker.report(query, self._region), request_number))

    async def _pass_on(self, session: Session, frame: Frame) -> None:
        if session.relay and not await session.relay.to_worker(frame):
            session.end((cuda_errors.UNKNOWN, "its worker does not read what the guest sends"))

    async def _send_data(self, frame: Frame) -> None:
        """Send a frame of a session's data; return once there is room for the next one."""
        async with self._turn:
            if self._writer and not self._writer.is_closing():
                self._writer.write(frame.encode())
                await self._writer.drain()

    def _on_session_end(self, session: Session) -> None:
        if self.sessions.pop(session.number, None):
            self._send(Frame(session.closed(), session.number))

    async def _end_sessions(self) -> None:
        await self._end_opening()
        await self._broker.end(list(self.sessions.values()))

    async def _end_opening(self) -> None:
        opening = [*self._opening, *self._answering]
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)

    def _send(self, frame: Frame) -> None:
        if self._writer is None or self._writer.is_closing():
            return
        self._writer.write(frame.encode())
        if self._writer.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            _log.warning("%s: the guest does not read its channel, cut off", self._vm)
            self._writer.transport.abort()
