# SPDX-License-Identifier: Apache-2.0
"""Uids of workers: two that live never share one, whichever kvgpud of this host started them."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path

from kvgpu.host.errors import KvgpuError

_FLOCK = struct.Struct("@hhqqi4x")  # fcntl(2): type, whence, start, len, pid


class WorkerUids:
    """Hands out the uids of a range.

    A kvgpud locks the byte N of one file for its uid N, which keeps the others away, and the kernel
    says whether an earlier one has left a process of that uid. So a uid comes again only when
    nothing of it is left.
    """

    def __init__(self, uids: range, lock_file: Path) -> None:
        """Raises OSError if the file cannot be made."""
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        self._locks = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._uids = uids
        self._taken: set[int] = set()
        self._next = 0  # the one given back last comes last

    def __len__(self) -> int:
        return len(self._uids)

    def take(self) -> int:
        """Raises KvgpuError if all are in use."""
        for _ in self._uids:
            uid = self._uids[self._next]
            self._next = (self._next + 1) % len(self._uids)
            if uid in self._taken or not self._lock(uid, fcntl.F_WRLCK):
                continue
            if not has_processes(uid):
                self._taken.add(uid)
                return uid
            self._lock(uid, fcntl.F_UNLCK)
        raise KvgpuError(
            f"all {len(self._uids)} uids for workers are in use",
            hint="end sessions, or give worker_uids of /etc/kvgpu/host.toml a longer range",
        )

    def keep(self, uid: int) -> None:
        """Hold the uid of a worker that an earlier kvgpud started."""
        self._lock(uid, fcntl.F_WRLCK)
        self._taken.add(uid)

    def give_back(self, uid: int) -> None:
        self._taken.discard(uid)
        if self._locks >= 0:
            self._lock(uid, fcntl.F_UNLCK)

    def close(self) -> None:
        """Leave those that are in use to the next kvgpud."""
        os.close(self._locks)
        self._locks = -1

    def _lock(self, uid: int, kind: int) -> bool:
        try:
            fcntl.fcntl(self._locks, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, uid, 1, 0))
        except BlockingIOError:
            return False
        return True


def has_processes(uid: int) -> bool:
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


def end_processes(uid: int) -> None:
    """Kill all processes of a uid that is a worker's: in one go, so that none can fork away."""
    if has_processes(uid):
        subprocess.run(["/bin/sh", "-c", "kill -s KILL -- -1"], user=uid, check=False)
