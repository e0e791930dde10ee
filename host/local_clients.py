# SPDX-License-Identifier: Apache-2.0
"""Programs of this host under `kvgpu run`: a socket per run, a memfd as region, a session per
connection.

Trusts SO_PEERCRED, nothing a client says. The end of a connection or of its process closes the
session. A session that was taken up from an earlier kvgpud has no connection any more: its process
alone is watched.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvgpu.host.control_frames import (
    FEATURE_BYTE_STREAM,
    Frame,
    Kick,
    Open,
    Ping,
    Pong,
    Query,
    Refused,
)
from kvgpu.host.device_frames import DeviceQuery
from kvgpu.host.errors import SessionError
from kvgpu.host.frame_body import Body
from kvgpu.host.ivshmem.placement import ANYWHERE, Placement
from kvgpu.host.ivshmem.region import Region, region_bytes_for
from kvgpu.host.orphans import Orphan
from kvgpu.host.packet_socket import PacketSocket
from kvgpu.host.processes import start_ticks
from kvgpu.host.session import Owner, Session
from kvgpu.host.session_store import RunRecord
from kvgpu.host.sessions import SessionBroker

_log = logging.getLogger(__name__)

HOST = "host"  # stands where a VM's name would
_UCRED = struct.Struct("3i")
# accept() errors that stay while the connection waits, so the listener stays readable.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SHORTAGE_PAUSE_S = 1.0


class LocalRun:
    """What one `kvgpu run` gets: the listening socket and the region its processes share."""

    def __init__(
        self,
        broker: SessionBroker,
        path: Path,
        record: RunRecord,
        region: Region | None = None,
        orphans: Sequence[Orphan] = (),
        placement: Placement = ANYWHERE,
    ) -> None:
        """Begin a run, or go on with one whose `orphans` use `region`."""
        self._broker = broker
        self.path = path
        self._clients: set[LocalClient] = set()
        pinned_bytes = record.pinned_bytes
        self._region = region or Region.create_memfd(
            record.region, region_bytes_for(pinned_bytes), pinned_bytes, placement
        )
        try:
            self._listener = _listen_at(path, record.owner_uid)
        except OSError:
            self._region.close()
            raise
        self._is_short = False
        for orphan in orphans:
            self._resume(orphan)
        self._listen()

    async def close(self) -> None:
        """End all sessions and free the region."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        await asyncio.gather(*(client.end() for client in self._clients))
        self._region.close()

    def leave(self) -> None:
        """Listen no longer; the sessions go on for the next kvgpud."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for client in self._clients:
            client.leave()

    def _resume(self, orphan: Orphan) -> None:
        try:
            client = LocalClient(
                self._broker, self._region, orphan.record.pid, self._clients.discard
            )
        except OSError:  # the process has ended meanwhile
            owner = Owner(HOST)
            self._broker.resume(orphan, owner, self._region, lambda _: None).end()
        else:
            self._clients.add(client)
            client.resume(orphan)

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _SHORTAGES:
                self._pause(error)
            else:
                _log.info("%s: accept: %s", self.path, error)
            return
        self._is_short = False
        try:
            pid, uid, _ = _UCRED.unpack(
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            )
            client = LocalClient(self._broker, self._region, pid, self._clients.discard)
        except OSError as error:
            _log.info("%s: a client left at once: %s", self.path, error)
            sock.close()
        else:
            self._clients.add(client)
            client.listen(sock, uid)

    def _pause(self, error: OSError) -> None:
        if not self._is_short:  # once per shortage
            _log.error("%s: accept: %s; clients wait until that is over", self.path, error)
        self._is_short = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(_SHORTAGE_PAUSE_S, self._listen)


class LocalClient:
    """One process and at most one session. It has a connection unless an earlier kvgpud had it."""

    def __init__(
        self,
        broker: SessionBroker,
        region: Region,
        pid: int,
        on_gone: Callable[[LocalClient], None],
    ) -> None:
        """Raises OSError if there is no such process."""
        self._broker = broker
        self._region = region
        self._on_gone = on_gone
        self._pid = pid
        self._uid = -1
        # A forked child keeps the connection open, so the process itself is watched, too.
        self._pidfd = os.pidfd_open(self._pid)
        self._start_ticks = start_ticks(self._pid)
        self._session: Session | None = None
        self._opening: asyncio.Task[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._packets: PacketSocket | None = None
        asyncio.get_running_loop().add_reader(self._pidfd, self._hang_up)

    def listen(self, sock: socket.socket, uid: int) -> None:
        """Serve what the process says on `sock`."""
        self._uid = uid
        self._packets = PacketSocket(sock, f"process {self._pid}", self._on_frame, self._hang_up)

    def resume(self, orphan: Orphan) -> None:
        """Go on with its session; end it at once if the process has ended meanwhile."""
        owner = Owner(HOST, client_start_ticks=orphan.record.client_start_ticks)
        self._session = self._broker.resume(orphan, owner, self._region, self._on_session_end)
        if self._start_ticks != owner.client_start_ticks:
            self._hang_up()

    def leave(self) -> None:
        """Hang up; the session goes on for the next kvgpud."""
        if self._ending is None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            if self._packets:
                self._packets.close()

    async def end(self) -> None:
        """Hang up, and wait until the session is gone."""
        self._hang_up()
        assert self._ending
        await self._ending

    def _hang_up(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._packets:
            self._packets.close()
        for task in filter(None, (self._opening, self._answering)):
            task.cancel()
            await asyncio.wait([task])
        if self._session:
            await self._broker.end([self._session])
        self._on_gone(self)

    def _on_frame(self, frame: Frame) -> None:
        match frame.body:
            case Open() as request if self._opening is None:
                # The client's own word for who it is does not count.
                features = request.features & ~FEATURE_BYTE_STREAM
                request = replace(request, features=features, pid=self._pid, uid=self._uid)
                self._opening = asyncio.create_task(self._open(request, frame.id))
            case Kick() if self._session:
                self._session.kick()
            case Ping():
                self._send(Frame(Pong(), frame.id))
            case Query() | DeviceQuery() as query if self._answering is None:
                self._answering = asyncio.create_task(self._answer(query, frame.id))
            case body:
                _log.warning("process %d: %s not expected, hung up", self._pid, body)
                self._hang_up()

    async def _answer(self, query: Query | DeviceQuery, request_number: int) -> None:
        if isinstance(query, Query):
            answer: Body = await self._broker.facts()
        else:
            answer = await self._broker.report(query, self._region)
        self._answering = None
        self._send(Frame(answer, request_number))

    def _send(self, frame: Frame, fds: Sequence[int] = ()) -> None:
        if self._packets:
            self._packets.send(frame, fds)

    async def _open(self, request: Open, request_number: int) -> None:
        owner = Owner(HOST, client_start_ticks=self._start_ticks)
        try:
            session = await self._broker.open(request, owner, self._region, self._on_session_end)
        except SessionError as error:
            self._send(Frame(Refused(error.cuda_error, str(error)), request_number))
            return
        self._session = session
        assert session.worker
        fds = (self._region.fd, session.worker.kick_fd, session.worker.pidfd)
        self._send(Frame(session.opened(), request_number), fds)

    def _on_session_end(self, session: Session) -> None:
        self._send(Frame(session.closed(), session.number))
        self._hang_up()


def _listen_at(path: Path, owner_uid: int) -> socket.socket:
    """Return a socket that only `owner_uid` can connect to. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        if os.geteuid() == 0:
            os.chown(path, owner_uid, -1)
        path.chmod(0o600)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener
