# SPDX-License-Identifier: Apache-2.0
"""Frames of a byte-stream session (PROTOCOL.md §7) between its worker and its VM's channel.

Reads no payload. Keeps nothing: who sends faster than the other side reads is made to wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from kvgpu.host.control_frames import MAX_STREAM_FRAME_BYTES, Frame, StreamForm, decode
from kvgpu.host.errors import ProtocolError

_log = logging.getLogger(__name__)

_READ_LIMIT_S = 10.0  # a worker always reads; one that does not for so long is broken


class StreamRelay:
    """kvgpud's end of a worker's data socket."""

    def __init__(self, sock: socket.socket, session: int) -> None:
        self._sock = sock
        self._session = session
        self._task: asyncio.Task[None] | None = None
        sock.setblocking(False)

    def start(self, send: Callable[[Frame], Awaitable[None]], end: Callable[[str], None]) -> None:
        """Begin to carry the worker's frames to `send`; `end` is told what a worker did wrong."""
        self._task = asyncio.create_task(self._run(send, end))

    async def to_worker(self, frame: Frame) -> bool:
        """Hand `frame` to the worker; False if it does not read."""
        if self._sock.fileno() < 0:
            return True  # the session has ended meanwhile
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                await asyncio.get_running_loop().sock_sendall(self._sock, frame.encode())
        except TimeoutError:
            return False
        except OSError as error:
            _log.debug("session %d: %s", self._session, error)  # its end is noticed elsewhere
        return True

    def close(self) -> None:
        if self._task:
            self._task.cancel()  # it closes the socket it reads from
        else:
            self._sock.close()

    async def _run(
        self, send: Callable[[Frame], Awaitable[None]], end: Callable[[str], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while message := await loop.sock_recv(self._sock, MAX_STREAM_FRAME_BYTES + 1):
                frame = decode(message)
                if not isinstance(frame.body, StreamForm) or frame.id != self._session:
                    raise ProtocolError(f"{frame.body} is not for its client")
                await send(frame)
        except ProtocolError as error:
            end(str(error))
        except OSError as error:
            _log.debug("session %d: %s", self._session, error)
        finally:
            self._sock.close()
