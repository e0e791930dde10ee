# SPDX-License-Identifier: Apache-2.0
"""What keeps a worker apart from the host and from other workers, as far as kvgpud sees to it.

The worker itself does the rest before it reads a byte of its guest (host/worker/jail.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgpu.host.shared_folders import SharedFolders
from kvgpu.host.worker_cgroup import WorkerCgroups
from kvgpu.host.worker_uids import WorkerUids, end_processes


class Confinement:
    """Of one worker; `release` it when the worker has been reaped. This one confines nothing."""

    uid = 0

    def options(self) -> list[str]:
        """Return what the worker's command line says of it."""
        return ["--no-jail"]

    def enter(self, pid: int) -> None:
        """Confine the worker that has just been spawned. Raises OSError."""

    def allow_memory(self, shared_bytes: int) -> None:
        """Allow the pages of a region of so many bytes. Raises OSError."""

    def share(self, owner: str) -> None:
        """Let the worker's driver meet those of the owner's other workers. Raises OSError."""

    def ran_out_of_memory(self) -> bool:
        return False

    def release(self) -> None:
        """End what the worker has started and left, and give back what is taken up by it."""


@dataclass(frozen=True, slots=True)
class Jails:
    """Makes confinements; the worker has to be started by root."""

    gid: int
    uids: WorkerUids
    cgroups: WorkerCgroups
    folders: SharedFolders
    n_tasks: int

    def make(self, shared_bytes: int) -> Confinement:
        """Make one that allows the pages of a region. Raises KvgpuError if there is no uid left."""
        return _Jail(self, self.uids.take(), shared_bytes)

    def adopt(self, uid: int) -> Confinement:
        """Return that of a worker which an earlier kvgpud started."""
        self.uids.keep(uid)
        return _Jail(self, uid, 0)


class _Jail(Confinement):
    def __init__(self, jails: Jails, uid: int, shared_bytes: int) -> None:
        self.uid = uid
        self._shared_bytes = shared_bytes
        self._jails = jails

    def options(self) -> list[str]:
        jails = self._jails
        return [
            *("--uid", str(self.uid), "--gid", str(jails.gid)),
            *("--max-tasks", str(jails.n_tasks)),
            *("--shm", str(jails.folders.link(self.uid))),
        ]

    def enter(self, pid: int) -> None:
        self._jails.cgroups.enter(self.uid, pid, self._shared_bytes)

    def allow_memory(self, shared_bytes: int) -> None:
        self._jails.cgroups.allow_memory(self.uid, shared_bytes)

    def share(self, owner: str) -> None:
        self._jails.folders.lead(self.uid, owner)

    def ran_out_of_memory(self) -> bool:
        return self._jails.cgroups.ran_out_of_memory(self.uid)

    def release(self) -> None:
        end_processes(self.uid)
        self._jails.folders.remove(self.uid)
        self._jails.cgroups.remove(self.uid)
        self._jails.uids.give_back(self.uid)
