# SPDX-License-Identifier: Apache-2.0
"""The ivshmem server of one VM: hands its memory and its doorbells to QEMU and to kvgpud.

A process of its own, since it has to outlive kvgpud: QEMU asks once and never again, so that these
descriptors have nobody else who could give them to the next kvgpud. Standard library only, to start
in milliseconds.

The protocol is QEMU's (docs/specs/ivshmem-spec.rst): messages of 8 bytes, each with a descriptor or
without. Each client is told that it is peer 0; peers 1 to N_DOORBELLS are the host, with one vector
each: the guest rings `n` by writing n << 16 to its doorbell register.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys

N_DOORBELLS = 64  # sessions that a region can have
VERSION = 0
CLIENT = 0
MEMORY = -1
MESSAGE = struct.Struct("<q")
END = b"end"  # not QEMU's protocol: what kvgpud says when the VM has ended

_ALONE_MS = 60_000  # without a client: a kvgpud that is restarted, or QEMU, comes before that
_CREDENTIALS = struct.Struct("iII")


class Server:
    """Serves until kvgpud says END, or nobody has been connected for a while.

    QEMU's user gets one connection, ever: other VMs' QEMUs are of the same user, and must not get
    this one's memory. kvgpud's user, ours, gets as many as it likes.
    """

    def __init__(
        self, listener: socket.socket, memory_fd: int, qemu_uid: int, alone_ms: int
    ) -> None:
        self._listener = listener
        self._memory_fd = memory_fd
        self._qemu_uid = qemu_uid
        self._doorbells = [
            os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(N_DOORBELLS)
        ]
        self._clients: dict[int, socket.socket] = {}
        self._alone_ms = alone_ms
        self._qemu_came = False
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def serve(self) -> None:
        while ready := self._poll.poll(None if self._clients else self._alone_ms):
            for fd, _ in ready:
                if fd == self._listener.fileno():
                    self._accept()
                elif self._is_end(self._clients[fd]):
                    return
                else:  # it has hung up; no client of QEMU's protocol says anything
                    self._drop(fd)

    def _is_end(self, client: socket.socket) -> bool:
        try:
            return client.recv(len(END)) == END and _peer(client)[1] == os.geteuid()
        except OSError:
            return False

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setblocking(False)  # all that is said fits into a socket's buffer
        if not self._may_come(client):
            client.close()
            return
        self._clients[client.fileno()] = client
        self._poll.register(client, select.POLLIN)
        try:
            self._greet(client)
        except OSError as error:
            _say(f"a client does not take its descriptors: {error}")
            self._drop(client.fileno())

    def _may_come(self, client: socket.socket) -> bool:
        pid, uid, _ = _peer(client)
        if uid == os.geteuid():
            return True
        if uid == self._qemu_uid and not self._qemu_came:
            self._qemu_came = True
            return True
        why = "QEMU has been there" if uid == self._qemu_uid else f"QEMU's is {self._qemu_uid}"
        _say(f"process {pid} of user {uid} refused: {why}")
        return False

    def _greet(self, client: socket.socket) -> None:
        for number in (VERSION, CLIENT):
            client.send(MESSAGE.pack(number))
        descriptors = [(MEMORY, self._memory_fd), *enumerate(self._doorbells, start=1)]
        for number, fd in descriptors:
            socket.send_fds(client, [MESSAGE.pack(number)], [fd])

    def _drop(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._clients.pop(fd).close()


def _peer(client: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group of who connected."""
    found = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(found)
    return pid, uid, gid


def _say(what: str) -> None:
    print(f"ivshmem server: {what}", file=sys.stderr, flush=True)


def main() -> None:
    """Serve as nobody's child; the process that was started ends at once.

    Arguments: QEMU's user, and the descriptors of the listening socket and the memory.
    """
    qemu_uid, listener_fd, memory_fd = map(int, sys.argv[1:])
    if os.fork() == 0:
        os.setsid()
        Server(socket.socket(fileno=listener_fd), memory_fd, qemu_uid, _ALONE_MS).serve()


if __name__ == "__main__":
    main()
