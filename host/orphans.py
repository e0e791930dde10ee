# SPDX-License-Identifier: Apache-2.0
"""Sessions whose kvgpud is gone: found by their records, taken over from their workers.

A worker is assumed to be taken over by its guest: of what it hands back only descriptors are used,
and those are compared with the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from kvgpu.host.confinement import Confinement, Jails
from kvgpu.host.control_frames import MAX_FRAME_BYTES, PROTOCOL_MAJOR, End, Frame, Resumed, decode
from kvgpu.host.errors import ProtocolError
from kvgpu.host.ivshmem.allocator import BLOCK_BYTES
from kvgpu.host.processes import kill, open_holders, open_process
from kvgpu.host.session_store import SessionRecord, SessionStore
from kvgpu.host.worker_process import WorkerHandle

_log = logging.getLogger(__name__)
_KILL_LIMIT_S = 2.0
_ANSWER_LIMIT_S = 3.0  # a worker looks once a second whether the connection is still there


@dataclass(slots=True)
class Orphan:
    """A session whose worker lives."""

    record: SessionRecord
    worker: WorkerHandle
    region_fd: int  # -1: the worker did not hand it over
    answers: bool  # False: nothing but its end is to be expected of it

    def abandon(self) -> None:
        """End it where there is nobody to watch its end."""
        with contextlib.suppress(OSError):
            self.worker.control.send(Frame(End()).encode())
        _log.warning("session %d: nobody has a use for it, killed", self.record.session)
        kill(self.worker.pidfd)
        self.worker.control.close()
        os.close(self.worker.pidfd)
        os.close(self.worker.kick_fd)
        self.worker.confinement.release()  # its uid stays taken for as long as it lives
        self.close_region()

    def close_region(self) -> None:
        if self.region_fd >= 0:
            os.close(self.region_fd)
            self.region_fd = -1

    def ranges(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of all that it has of the region."""
        extents = [(offset, size) for offset, (size, _) in self.record.extents.items()]
        return [(self.record.block_offset, BLOCK_BYTES), *extents]


class Orphans:
    """The sessions an earlier kvgpud left, by region; what is not taken is ended."""

    def __init__(self, found: list[Orphan]) -> None:
        self._by_region: dict[UUID, list[Orphan]] = {}
        for orphan in found:
            self._by_region.setdefault(orphan.record.region, []).append(orphan)

    def of(self, region: UUID) -> list[Orphan]:
        return self._by_region.get(region, [])

    def taken(self, region: UUID) -> None:
        """Tell that those of `region` belong to somebody now."""
        self._by_region.pop(region, None)

    def abandon_rest(self, store: SessionStore) -> None:
        for orphans in self._by_region.values():
            for orphan in orphans:
                orphan.abandon()
                store.remove(orphan.record.session)
        self._by_region.clear()


async def find_orphans(store: SessionStore, jails: Jails | None) -> Orphans:
    """Find the sessions that outlived an earlier kvgpud, and forget those that did not."""
    records = store.load()
    for path in store.strays():
        await _end_stray(path)
    found = await asyncio.gather(*(_find(store, record, jails) for record in records))
    return Orphans([orphan for orphan in found if orphan])


async def _end_stray(path: Path) -> None:
    """End the worker of a session that nobody was told of: its memory is about to be given away.

    The earlier kvgpud was killed before it could write the session down.
    """
    for pidfd in open_holders(path):
        _log.warning("%s: a worker of which there is no record, killed", path)
        kill(pidfd)
        if not await _ends(pidfd, _KILL_LIMIT_S):
            _log.error("%s: its worker cannot be killed", path)
        os.close(pidfd)
    path.unlink(missing_ok=True)


async def _ends(pidfd: int, limit_s: float) -> bool:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), limit_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True


async def _find(store: SessionStore, record: SessionRecord, jails: Jails | None) -> Orphan | None:
    pidfd = open_process(record.worker_pid, record.worker_start_ticks)
    if pidfd is None:
        _log.info("session %d: its worker ended while no kvgpud ran", record.session)
        store.remove(record.session)
        return None
    try:
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            control, fds = await _connect(str(store.socket_path(record.session)))
    except (OSError, ProtocolError) as error:  # TimeoutError is an OSError
        reason = str(error) or f"no answer within {_ANSWER_LIMIT_S:g} s"
        _log.error("session %d: its worker cannot be taken up: %s", record.session, reason)
        control, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other_end.close()  # so it counts as hung up, and the worker is killed
        fds = [-1, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)]
    confinement = Confinement()
    if jails and record.worker_uid:
        confinement = jails.adopt(record.worker_uid, record.worker_pid, record.scope)
    worker = WorkerHandle(record.worker_pid, pidfd, control, fds[1], confinement, is_child=False)
    region_fd = fds[0]
    orphan = Orphan(record, worker, region_fd, answers=region_fd >= 0)
    if region_fd >= 0 and os.fstat(region_fd).st_ino != record.region_inode:
        _log.error("session %d: its worker handed over another region", record.session)
        orphan.close_region()
        orphan.answers = False
    return orphan


async def _connect(path: str) -> tuple[socket.socket, list[int]]:
    """Return the connection with a worker, and the region's and the kick descriptor it passed."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds: list[int] = []
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, path)
        readable = asyncio.Event()
        loop.add_reader(sock, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(sock)
        message, fds, _, _ = socket.recv_fds(sock, MAX_FRAME_BYTES + 1, 2, socket.MSG_CMSG_CLOEXEC)
        _check_resumed(message, fds)
    except BaseException:
        sock.close()
        for fd in fds:
            os.close(fd)
        raise
    return sock, fds


def _check_resumed(message: bytes, fds: list[int]) -> None:
    body = decode(message).body
    if not isinstance(body, Resumed) or body.major != PROTOCOL_MAJOR or len(fds) != 2:
        raise ProtocolError(f"RESUMED with two descriptors expected, {body} with {len(fds)} came")
    # What is written there later must not block and not hit a file.
    if os.readlink(f"/proc/self/fd/{fds[1]}") != "anon_inode:[eventfd]":
        raise ProtocolError("the second descriptor is not an eventfd")
