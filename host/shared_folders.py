# SPDX-License-Identifier: Apache-2.0
"""Folders in which the drivers of one owner's workers meet: what each of them has as /dev/shm.

NVIDIA's driver (580) keeps a file there for each process that shares an event by CUDA's IPC;
without one cuEventCreate answers CUDA_ERROR_MAP_FAILED. A worker may wait for its session before
it is known whose it will be, and can mount nothing then. So its /dev/shm is a link from the
beginning, which leads to the owner's folder later. Links and folders have names that nobody
guesses, and no worker can list them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
from pathlib import Path

_log = logging.getLogger(__name__)


class SharedFolders:
    """Links and folders below `root`. Keeps nothing: the next kvgpud finds the same names."""

    def __init__(self, root: Path) -> None:
        """Raises OSError if they cannot be made."""
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o711)
        self._key = _read_or_make(root.with_name(root.name + ".key"))

    def link(self, uid: int) -> Path:
        """Return what the /dev/shm of the worker with this uid is to lead to."""
        return self._root / self._name(f"worker {uid}")

    def lead(self, uid: int, owner: str) -> None:
        """Let the worker's /dev/shm be the owner's folder. Raises OSError."""
        folder = self._root / self._name(f"owner {owner}")
        link = self.link(uid)
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)  # first: to what a link leads is not removed
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)

    def remove(self, uid: int) -> None:
        """Remove what a worker has left, and the folder behind the last one of its owner."""
        link = self.link(uid)
        try:
            folder = self._root / os.readlink(link)
            link.unlink()
            others = (other for other in self._root.iterdir() if other.is_symlink())
            if folder.name not in {os.readlink(other) for other in others}:
                shutil.rmtree(folder)
                return
            for left in os.scandir(folder):
                if left.stat(follow_symlinks=False).st_uid == uid:
                    with contextlib.suppress(OSError):
                        os.unlink(left)
        except FileNotFoundError:
            pass  # it never had a session
        except OSError as error:
            _log.warning("the shared folder of worker %d: %s", uid, error)

    def _name(self, what: str) -> str:
        return hashlib.blake2b(what.encode(), key=self._key, digest_size=16).hexdigest()


def _read_or_make(path: Path) -> bytes:
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_bytes(32))
    return path.read_bytes()
