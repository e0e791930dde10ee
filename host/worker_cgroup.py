# SPDX-License-Identifier: Apache-2.0
"""Control groups (v2) of workers: how much memory and how many threads each may have.

They lie beside systemd's own, not in kvgpud.service: workers outlive kvgpud, systemd complains of
what is left in a unit's group when it starts it again, and of a group that has groups below it the
kernel lets no process be a member, so that the next kvgpud could not be started there.
"""

from __future__ import annotations

import logging
from pathlib import Path

_log = logging.getLogger(__name__)
_CONTROLLERS = ("memory", "pids")


class WorkerCgroups:
    """A group per worker below `parent`; `problem` says why there is none, or is empty."""

    def __init__(self, parent: Path | None, memory_bytes: int, n_tasks: int) -> None:
        self.problem = "switched off by worker_cgroup"
        self._parent = parent
        self._memory_bytes = memory_bytes
        self._n_tasks = n_tasks
        self._ended: set[Path] = set()  # groups that are to be removed
        if parent is not None:
            self.problem = _prepare(parent)
        if self.problem:
            self._parent = None

    def enter(self, name: str, pid: int, shared_bytes: int) -> None:
        """Move the worker `pid` into the group `name`, which is made. Raises OSError.

        `shared_bytes`: as of `allow_memory`.
        """
        if self._parent is None:
            return
        group = self._parent / name
        group.mkdir(exist_ok=True)  # one is there if an earlier kvgpud was killed
        self.allow_memory(name, shared_bytes)
        _write(group / "pids.max", str(self._n_tasks))
        _write(group / "memory.oom.group", "1")
        swap = group / "memory.swap.max"
        if swap.exists():  # not where the kernel has no swap: else memory.max would be no limit
            _write(swap, "0")
        _write(group / "cgroup.procs", str(pid))

    def allow_memory(self, name: str, shared_bytes: int) -> None:
        """Allow `shared_bytes` of the region beside its own: who touches a page first is charged.

        Raises OSError.
        """
        if self._parent is not None:
            _write(self._parent / name / "memory.max", str(self._memory_bytes + shared_bytes))

    def ran_out_of_memory(self, name: str) -> bool:
        if self._parent is None:
            return False
        try:
            events = (self._parent / name / "memory.events").read_text().split()
        except OSError:
            return False
        return int(dict(zip(events[::2], events[1::2], strict=True)).get("oom_kill", "0")) > 0

    def remove(self, name: str) -> None:
        """Kill what the worker has left, and remove its group: now, or with a later one."""
        if self._parent is None:
            return
        self._ended.add(self._parent / name)
        for group in list(self._ended):
            try:
                if (group / "cgroup.kill").exists():  # Linux 5.14
                    _write(group / "cgroup.kill", "1")
                group.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:  # what was killed may take a while
                _log.info("%s: left for now: %s", group, error)
                continue
            self._ended.discard(group)


def _prepare(parent: Path) -> str:
    """Make `parent`, with the controllers for the groups below; return why that cannot be done."""
    root = parent.parent
    try:
        known = (root / "cgroup.controllers").read_text().split()
    except OSError:
        return f"{root} is no cgroup v2"
    missing = [name for name in _CONTROLLERS if name not in known]
    if missing:
        return f"{root} has no controller {' and '.join(missing)}"
    try:
        parent.mkdir(exist_ok=True)
        for group in (root, parent):
            switch = group / "cgroup.subtree_control"
            enabled = switch.read_text().split()
            wanted = [f"+{name}" for name in _CONTROLLERS if name not in enabled]
            if wanted:
                _write(switch, " ".join(wanted))
    except OSError as error:
        return f"{error.filename or parent}: {error.strerror}"
    return ""


def _write(path: Path, text: str) -> None:
    """Write as the kernel wants it: in one piece."""
    with path.open("wb", buffering=0) as file:
        file.write(text.encode())
