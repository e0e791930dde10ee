# SPDX-License-Identifier: Apache-2.0
"""What kvgpud keeps of its sessions on disk, so that the next kvgpud can take them up again.

RUNTIME_DIR/sessions/N.json is written before anybody is told what it says; N.sock is where the
session's worker waits for the next kvgpud. RUNTIME_DIR/run/N.json says the same of a `kvgpu run`,
RUNTIME_DIR/domains/UUID.xml of a VM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from kvgpu.host.control_frames import Open

_log = logging.getLogger(__name__)
# Records outlive releases, up and down: a new field has a default, and one that is not known is let
# be.
_KEPT = ConfigDict(extra="ignore")
_Record = TypeVar("_Record", bound=BaseModel)


def scope_of(is_in_vm: bool, region: UUID, uid: int) -> str:
    """Name who shares: the VM that has the region; on the host, the user."""
    return f"vm/{region}" if is_in_vm else f"user/{uid}"


class SessionRecord(BaseModel):
    """One session."""

    model_config = _KEPT

    session: int
    vm: str
    region: UUID
    region_inode: int
    block_offset: int
    extents: dict[int, tuple[int, int]]  # offset -> bytes, number of the worker's request
    doorbell: int = 0
    devices: tuple[int, ...] = tuple(range(16))  # one without this line had all
    features: int
    window: int
    pid: int  # in the guest
    uid: int
    comm: bytes
    boot_id: str  # of the VM when the session was opened
    client_start_ticks: int  # 0: a process of a VM
    worker_pid: int
    worker_start_ticks: int
    worker_uid: int = 0  # that of its owner's workers; 0: kvgpud's
    started_at_s: float
    is_ready: bool

    @property
    def scope(self) -> str:
        return scope_of(bool(self.boot_id), self.region, self.uid)

    def request(self) -> Open:
        return Open(0, 0, self.features, self.window, self.pid, self.uid, self.comm)


class RunRecord(BaseModel):
    """One `kvgpu run`."""

    model_config = _KEPT

    number: int
    region: UUID
    owner_uid: int
    pinned_bytes: int
    asker_pid: int  # the `kvgpu run` process
    asker_start_ticks: int


def save(path: Path, record: BaseModel) -> None:
    """Write `record` whole or not at all. Raises OSError."""
    write_whole(path, record.model_dump_json())


def write_whole(path: Path, text: str) -> None:
    """Make or replace `path`, for us alone, in a folder where nobody else can write.

    Raises OSError; then all is as it was.
    """
    temporary = path.with_suffix(".new")
    try:
        temporary.write_text(text)
        temporary.chmod(0o600)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def load_all(folder: Path, kind: type[_Record]) -> list[_Record]:
    """Read the records of `folder`; what cannot be read is removed, with a line in the log."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(kind.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            _log.error("%s: cannot be taken up: %s", path, error)
            path.unlink(missing_ok=True)
    return records


class SessionStore:
    """The folder of the sessions' records, and how long a worker waits for the next kvgpud.

    0 s: sessions end with kvgpud, and nothing is written.
    """

    def __init__(self, folder: Path, away_limit_s: int) -> None:
        self.away_limit_s = away_limit_s
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, record: SessionRecord) -> None:
        if self.away_limit_s:
            save(self._folder / f"{record.session}.json", record)

    def load(self) -> list[SessionRecord]:
        return load_all(self._folder, SessionRecord)

    def strays(self) -> list[Path]:
        """Return the sockets of sessions of which there is no record."""
        return [
            path for path in self._folder.glob("*.sock") if not path.with_suffix(".json").exists()
        ]

    def remove(self, session: int) -> None:
        for suffix in ("json", "sock"):
            with contextlib.suppress(OSError):  # a folder that is gone holds nothing
                (self._folder / f"{session}.{suffix}").unlink(missing_ok=True)

    def socket_path(self, session: int) -> Path:
        return self._folder / f"{session}.sock"

    def listen(self, session: int) -> socket.socket | None:
        """Make the socket on which the session's worker will wait, if it shall. Raises OSError."""
        if not self.away_limit_s:
            return None
        path = self.socket_path(session)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            old_umask = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(old_umask)
            listener.listen(1)
        except OSError:
            listener.close()
            raise
        return listener
