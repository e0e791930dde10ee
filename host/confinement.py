# SPDX-License-Identifier: Apache-2.0
"""What keeps a worker apart from the host and from other workers, as far as kvgpud sees to it.

The worker itself does the rest before it reads a byte of its guest (host/worker/jail.cpp).
"""

from __future__ import annotations

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

    def give_to(self, owner: str) -> None:
        """Say whose a worker is that has waited for its session."""

    def ran_out_of_memory(self) -> bool:
        return False

    def release(self) -> None:
        """End what the worker has started and left, and give back what is taken up by it."""


class Jails:
    """Makes confinements; the worker has to be started by root.

    The workers of one owner have one uid, and with it a /dev/shm: NVIDIA's driver (580) keeps
    there, for its own uid alone, what two processes need of each other for events of CUDA's IPC.
    Each worker has it from an earlier one (host/worker/jail_shm.h).
    """

    def __init__(self, gid: int, uids: WorkerUids, cgroups: WorkerCgroups, n_tasks: int) -> None:
        """`n_tasks`: that all workers of an owner may have together."""
        self.gid = gid
        self.uids = uids
        self.cgroups = cgroups
        self.n_tasks = n_tasks
        self._uids_by_owner: dict[str, int] = {}
        self._living: dict[int, list[_Jail]] = {}  # by uid, the oldest first

    def has(self, owner: str) -> bool:
        """Whether a worker of this owner lives: the next one must have its uid from the start."""
        return owner in self._uids_by_owner

    def make(self, shared_bytes: int, owner: str | None) -> Confinement:
        """Make one that allows the pages of a region; owner None: it is to wait for one.

        Raises KvgpuError if there is no uid left.
        """
        uid = self._uids_by_owner.get(owner) if owner else None
        return self._add(self.uids.take() if uid is None else uid, owner, shared_bytes)

    def adopt(self, uid: int, pid: int, owner: str) -> Confinement:
        """Return that of a worker which an earlier kvgpud started."""
        self.uids.keep(uid)
        jail = self._add(uid, owner)
        jail.pid = pid
        return jail

    def pids(self, uid: int) -> list[int]:
        return [jail.pid for jail in self._living[uid] if jail.pid]

    def give(self, uid: int, owner: str) -> None:
        self._uids_by_owner.setdefault(owner, uid)

    def forget(self, jail: _Jail) -> None:
        """Give the uid back with the last worker that has it, when nothing of it is left."""
        living = self._living[jail.uid]
        living.remove(jail)
        if living:
            return
        end_processes(jail.uid)
        del self._living[jail.uid]
        for owner in [owner for owner, uid in self._uids_by_owner.items() if uid == jail.uid]:
            del self._uids_by_owner[owner]
        self.uids.give_back(jail.uid)

    def _add(self, uid: int, owner: str | None, shared_bytes: int = 0) -> _Jail:
        jail = _Jail(self, uid, shared_bytes)
        self._living.setdefault(uid, []).append(jail)
        if owner:
            self.give(uid, owner)
        return jail


class _Jail(Confinement):
    pid = 0  # 0: not started yet

    def __init__(self, jails: Jails, uid: int, shared_bytes: int) -> None:
        self.uid = uid
        self._shared_bytes = shared_bytes
        self._jails = jails

    def options(self) -> list[str]:
        jails = self._jails
        others = jails.pids(self.uid)
        return [
            *("--uid", str(self.uid), "--gid", str(jails.gid)),
            *("--max-tasks", str(jails.n_tasks)),
            *(("--join", ",".join(map(str, others))) if others else ()),
        ]

    def enter(self, pid: int) -> None:
        self.pid = pid
        self._jails.cgroups.enter(self._group, pid, self._shared_bytes)

    def allow_memory(self, shared_bytes: int) -> None:
        self._jails.cgroups.allow_memory(self._group, shared_bytes)

    def give_to(self, owner: str) -> None:
        self._jails.give(self.uid, owner)

    def ran_out_of_memory(self) -> bool:
        return self._jails.cgroups.ran_out_of_memory(self._group)

    def release(self) -> None:
        self._jails.cgroups.remove(self._group)
        self._jails.forget(self)

    @property
    def _group(self) -> str:
        return f"worker-{self.uid}-{self.pid}"
