# SPDX-License-Identifier: Apache-2.0
"""A SOCK_SEQPACKET connection on the event loop: asyncio's own streams know byte streams only."""

from __future__ import annotations

import array
import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from kvgpu.host.control_frames import MAX_FRAME_BYTES, Frame, decode
from kvgpu.host.errors import ProtocolError
from kvgpu.host.pace import Pace

_log = logging.getLogger(__name__)

_FD = array.array("i")

# More than a socket's buffer holds, so nothing that was sent in time is lost; and an end for a peer
# that goes on sending.
_MAX_DRAINED_FRAMES = 1024
_BURST_FRAMES = 64  # that many at a time are never slowed down
_MAX_FRAMES_PER_S = 5000


class PacketSocket:
    """Calls `on_frame` per frame and `on_end` once: at end of file, on an error, or on bad bytes.

    A peer that sends without end is read no faster than _MAX_FRAMES_PER_S: the rest waits in the
    socket, and others have their turn. One that does not read until the socket's buffer is full is
    treated as gone, so that nobody can make kvgpud keep memory for them.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[], None],
        *,
        takes_fd: bool = False,
    ) -> None:
        """Serve `sock`. `takes_fd`: one descriptor may come with a frame, in its `fds`."""
        self._sock = sock
        self._room_bytes = socket.CMSG_LEN(_FD.itemsize) if takes_fd else 0
        self._peer = peer
        self._on_frame = on_frame
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(_BURST_FRAMES, _MAX_FRAMES_PER_S)
        sock.setblocking(False)
        self._listen()

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def send(self, frame: Frame, fds: Sequence[int] = ()) -> None:
        if self.closed:
            return
        try:
            socket.send_fds(self._sock, [frame.encode()], list(fds), socket.MSG_NOSIGNAL)
        except OSError as error:
            _log.info("%s: cannot send: %s", self._peer, error)
            self._end()

    def drain(self) -> None:
        """Deliver what has arrived already."""
        for _ in range(_MAX_DRAINED_FRAMES):
            if self.closed or not self._receive():
                return

    def close(self) -> None:
        """Hang up, without calling `on_end`."""
        if not self.closed:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _listen(self) -> None:
        if not self.closed:
            self._loop.add_reader(self._sock, self._on_readable)

    def _on_readable(self) -> None:
        pause_s = self._pace.count(1)
        if self._receive() and pause_s and not self.closed:
            self._loop.remove_reader(self._sock)
            self._loop.call_later(pause_s, self._listen)

    def _receive(self) -> bool:
        try:
            # Descriptors that a peer attaches and nobody takes are dropped by the kernel.
            message, ancillary, _, _ = self._sock.recvmsg(
                MAX_FRAME_BYTES + 1, self._room_bytes, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            message, ancillary = b"", []
        fds = _descriptors(ancillary)
        if not message:
            self._end()
            return False
        try:
            frame = replace(decode(message), fds=fds)
        except ProtocolError as error:
            for fd in fds:
                os.close(fd)
            _log.warning("%s: connection closed: %s", self._peer, error)
            self._end()
            return False
        self._on_frame(frame)
        return True

    def _end(self) -> None:
        if not self.closed:
            self.close()
            self._on_end()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return tuple(fds)
