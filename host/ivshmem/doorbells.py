# SPDX-License-Identifier: Apache-2.0
"""A VM's doorbells, as kvgpud has them: eventfds that its guest rings, handed out one per session.

They belong to the VM's ivshmem server (server.py), from which they come, and from which the next
kvgpud gets them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from kvgpu.host.errors import RegionError
from kvgpu.host.ivshmem import server

_ANSWER_LIMIT_S = 5.0  # of a server that is starting


class Doorbells:
    """A connection to a VM's server."""

    def __init__(
        self, path: Path, connection: socket.socket, memory_fd: int, eventfds: dict[int, int]
    ) -> None:
        self.path = path
        self.memory_fd = memory_fd  # the region's
        self._connection = connection
        self._eventfds = eventfds
        self._used: set[int] = set()

    @classmethod
    async def start(cls, path: Path, memory_fd: int, qemu_uid: int) -> Self:
        """Start a server that gives QEMU `memory_fd` at `path`. Raises RegionError."""
        try:
            await asyncio.to_thread(_start_server, path, memory_fd, qemu_uid)
        except (OSError, subprocess.SubprocessError) as error:
            path.unlink(missing_ok=True)
            raise RegionError(
                f"cannot start an ivshmem server at {path}: {error}",
                hint="see kvgpud's log; `kvgpu vm attach` without --doorbell needs none",
            ) from error
        return await cls.connect(path)

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """Take up what the server at `path` has. Raises RegionError."""
        try:
            return await asyncio.to_thread(cls._connect, path)
        except OSError as error:
            raise RegionError(
                f"the ivshmem server at {path} does not answer: {error}",
                hint="stop and start the VM",
            ) from error

    @classmethod
    def _connect(cls, path: Path) -> Self:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fds: dict[int, int] = {}
        with contextlib.ExitStack() as undo:  # if a step fails
            undo.callback(connection.close)
            connection.settimeout(_ANSWER_LIMIT_S)
            connection.connect(str(path))
            for expected in (server.VERSION, server.CLIENT):
                if _receive(connection) != (expected, -1):
                    raise OSError("it is not kvgpu's")
            for expected in (server.MEMORY, *range(1, server.N_DOORBELLS + 1)):
                number, fd = _receive(connection)
                if number != expected or fd < 0:
                    raise OSError("it is not kvgpu's")
                undo.callback(os.close, fd)
                fds[number] = fd
            undo.pop_all()
        return cls(path, connection, fds.pop(server.MEMORY), fds)

    def take(self, number: int = 0) -> int:
        """Return a doorbell that nobody has; `number`: this one, which a session has had."""
        number = number or next(n for n in sorted(self._eventfds) if n not in self._used)
        if number not in self._eventfds or number in self._used:
            raise RegionError(f"doorbell {number} is not free", hint="stop and start the VM")
        self._used.add(number)
        return number

    def give_back(self, number: int) -> None:
        self._used.remove(number)

    def eventfd(self, number: int) -> int:
        return self._eventfds[number]

    def end(self) -> None:
        """End the server: the VM has ended."""
        with contextlib.suppress(OSError):
            self._connection.send(server.END)
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Hang up; the server goes on for the next kvgpud."""
        self._connection.close()
        for fd in (self.memory_fd, *self._eventfds.values()):
            os.close(fd)
        self._eventfds.clear()


def register_value(number: int) -> int:
    """Return what the guest writes to the device's doorbell register to ring; 0: has none."""
    return number << 16


def _receive(connection: socket.socket) -> tuple[int, int]:
    """Return a message and its descriptor, -1 if it has none."""
    message, fds, _, _ = socket.recv_fds(
        connection, server.MESSAGE.size, 1, socket.MSG_CMSG_CLOEXEC
    )
    if len(message) != server.MESSAGE.size:
        raise OSError("hung up")
    return server.MESSAGE.unpack(message)[0], fds[0] if fds else -1


def _start_server(path: Path, memory_fd: int, qemu_uid: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o711)  # ours: no QEMU can put another socket there
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        os.chown(path, qemu_uid, -1)
        listener.listen()
        fds = (listener.fileno(), memory_fd)
        subprocess.run(
            [sys.executable, "-I", "-S", server.__file__, *map(str, (qemu_uid, *fds))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            timeout=_ANSWER_LIMIT_S,
            check=True,
        )
