# SPDX-License-Identifier: Apache-2.0
"""QEMU's end of an ivshmem server, as QEMU's hw/misc/ivshmem-pci.c reads it."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

N_PEERS = 64
_CLIENT_LIMIT_S = 5.0


class IvshmemDevice:
    """What a doorbell device gets at its start. Raises OSError if the server hangs up."""

    def __init__(self, path: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(_CLIENT_LIMIT_S)
        self.eventfds: dict[int, int] = {}
        self.connection.connect(str(path))
        self.version, no_fd = self._receive()
        self.id, no_fd_either = self._receive()
        assert no_fd == no_fd_either == -1
        memory, self.memory_fd = self._receive()
        assert memory == -1
        for _ in range(N_PEERS):
            peer, fd = self._receive()
            assert peer not in self.eventfds, "one vector each: QEMU refuses a second"
            self.eventfds[peer] = fd

    def write_doorbell(self, value: int) -> None:
        """Do as the device does at the guest's write to its register."""
        peer, vector = value >> 16, value & 0xFFFF
        if vector == 0 and peer in self.eventfds:
            os.eventfd_write(self.eventfds[peer], 1)

    def close(self) -> None:
        self.connection.close()
        for fd in (self.memory_fd, *self.eventfds.values()):
            os.close(fd)

    def _receive(self) -> tuple[int, int]:
        message, fds, _, _ = socket.recv_fds(self.connection, 8, 1)
        if len(message) != 8:
            raise ConnectionError("the server hung up")
        return struct.unpack("<q", message)[0], fds[0] if fds else -1
