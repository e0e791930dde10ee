# SPDX-License-Identifier: Apache-2.0
"""All `kvgpu run`s of this host: begun over the API, ended with whoever asked, kept over a restart
of kvgpud."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from uuid import uuid4

from kvgpu.host import session_store
from kvgpu.host.errors import RegionError
from kvgpu.host.ivshmem.placement import ANYWHERE, Placement
from kvgpu.host.ivshmem.region import Region, region_bytes_for
from kvgpu.host.local_clients import LocalRun
from kvgpu.host.orphans import Orphan, Orphans
from kvgpu.host.processes import open_process, start_ticks
from kvgpu.host.session_store import RunRecord
from kvgpu.host.sessions import SessionBroker

_log = logging.getLogger(__name__)


class LocalRuns:
    """The runs, by number. RUNTIME_DIR/run holds a socket and, for the next kvgpud, a record each.

    A run ends with the connection it was asked for on; after a restart, with the process that
    asked.
    """

    def __init__(self, folder: Path, broker: SessionBroker, *, keep: bool) -> None:
        self._folder = folder
        self._broker = broker
        self._keep = keep
        self._runs: dict[int, LocalRun] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._last_number = 0
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)

    def adopt_known(self, orphans: Orphans) -> None:
        """Take up the runs of an earlier kvgpud; what is left of those that have ended is ended."""
        for record in session_store.load_all(self._folder, RunRecord):
            self._last_number = max(self._last_number, record.number)
            pidfd = open_process(record.asker_pid, record.asker_start_ticks)
            if pidfd is None:
                self._forget(record.number)
                continue
            self._adopt(record, pidfd, orphans)
        for left_over in self._folder.glob("*.sock"):
            if int(left_over.stem) not in self._runs:
                left_over.unlink()

    def begin(
        self, asker_pid: int, uid: int, pinned_bytes: int, placement: Placement = ANYWHERE
    ) -> tuple[int, Path]:
        """Return the run's number and the path of its socket. Raises OSError, RegionError."""
        self._last_number += 1
        number = self._last_number
        record = RunRecord(
            number=number,
            region=uuid4(),
            owner_uid=uid,
            pinned_bytes=pinned_bytes,
            asker_pid=asker_pid,
            asker_start_ticks=start_ticks(asker_pid),
        )
        if self._keep:
            session_store.save(self._folder / f"{number}.json", record)
        try:
            self._runs[number] = LocalRun(
                self._broker, self._socket(number), record, placement=placement
            )
        except (OSError, RegionError):
            self._forget(number)
            raise
        return number, self._socket(number)

    async def end(self, number: int) -> None:
        """End a run and its sessions."""
        run = self._runs.pop(number, None)
        if run:
            self._forget(number)
            await run.close()

    async def close(self, *, end_sessions: bool) -> None:
        """Let go of all runs."""
        if end_sessions:
            await asyncio.gather(*(self.end(number) for number in list(self._runs)))
        for run in self._runs.values():
            run.leave()
        self._runs.clear()

    def _adopt(self, record: RunRecord, pidfd: int, orphans: Orphans) -> None:
        found = orphans.of(record.region)
        region = _region_of(record, found)
        # Without a region of theirs there is nothing to go on with.
        usable = [orphan for orphan in found if region]
        if usable:
            orphans.taken(record.region)
        for orphan in usable:
            orphan.close_region()
        run = LocalRun(self._broker, self._socket(record.number), record, region, usable)
        self._runs[record.number] = run
        _log.info("run %d: taken up with %d session(s)", record.number, len(usable))
        loop = asyncio.get_running_loop()

        def on_asker_end() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            task = asyncio.create_task(self.end(record.number))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

        loop.add_reader(pidfd, on_asker_end)

    def _socket(self, number: int) -> Path:
        return self._folder / f"{number}.sock"

    def _forget(self, number: int) -> None:
        (self._folder / f"{number}.json").unlink(missing_ok=True)


def _region_of(record: RunRecord, orphans: list[Orphan]) -> Region | None:
    """Return the region a run's sessions use, None if none of them has handed it over."""
    for orphan in orphans:
        if orphan.region_fd < 0:
            continue
        try:
            region = Region.adopt_memfd(
                *(os.dup(orphan.region_fd), record.region),
                *(region_bytes_for(record.pinned_bytes), record.pinned_bytes),
            )
        except RegionError as error:
            _log.error("run %d: %s", record.number, error)
        else:
            return region
    return None
