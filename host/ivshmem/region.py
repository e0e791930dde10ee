# SPDX-License-Identifier: Apache-2.0
"""Shared regions: the file behind a VM's ivshmem device, or a memfd for programs of this host.

Owns the files under /dev/shm. Writes the superblock and never reads anything back: the guest can
write all of it. Layout: PROTOCOL.md §2.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID

import posix_ipc

from kvgpu.host import control_frames
from kvgpu.host.errors import RegionError
from kvgpu.host.ivshmem.allocator import ALIGN_BYTES, BLOCK_BYTES, RangeAllocator
from kvgpu.host.units import MIB, format_size, is_power_of_two, round_up_to_power_of_two

SHM_DIR = Path("/dev/shm")
MIN_REGION_BYTES = 256 * MIB
N_BLOCKS_PLANNED = 32  # sessions for which a region has room beside its pinned memory
SUPERBLOCK_MAGIC = 0x5550475651564B00
_SUPERBLOCK = struct.Struct("<QHHIQ16s")

# linux/falloc.h; Python's os module has only posix_fallocate.
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who may open a region's file."""

    uid: int
    gid: int
    mode: int = 0o660


def region_bytes_for(pinned_bytes: int) -> int:
    """Return the smallest legal region for `pinned_bytes` and N_BLOCKS_PLANNED sessions."""
    wanted_bytes = ALIGN_BYTES + N_BLOCKS_PLANNED * BLOCK_BYTES + pinned_bytes
    return max(MIN_REGION_BYTES, round_up_to_power_of_two(wanted_bytes))


def check_region_size(size_bytes: int) -> None:
    if size_bytes < MIN_REGION_BYTES or not is_power_of_two(size_bytes):
        raise RegionError(
            f"a region of {format_size(size_bytes)} is not a power of two of at least 256 MiB",
            hint="make the <shmem> size with `kvgpu vm xml`",
        )


class Region:
    """An open region: its descriptor, and who got which part of it."""

    def __init__(
        self, fd: int, size_bytes: int, pinned_bytes: int, uuid: UUID, path: Path | None
    ) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self.uuid = uuid
        self.path = path  # None for a memfd
        self._ranges = RangeAllocator(ALIGN_BYTES, size_bytes)
        self._pinned_left_bytes = pinned_bytes
        os.pwrite(
            fd,
            _SUPERBLOCK.pack(
                SUPERBLOCK_MAGIC,
                control_frames.PROTOCOL_MAJOR,
                control_frames.PROTOCOL_MINOR,
                control_frames.FEATURES,
                size_bytes,
                uuid.bytes,
            ),
            0,
        )

    @classmethod
    def create_named(cls, uuid: UUID, size_bytes: int, pinned_bytes: int, owner: Ownership) -> Self:
        """Make /dev/shm/kvgpu-UUID for a VM that is about to start; a left-over file is replaced.

        Raises RegionError if the size is illegal, memory is short, or a process maps a left-over.
        """
        check_region_size(size_bytes)
        _check_free_memory(pinned_bytes)
        check_unused(uuid)
        path = region_path(uuid)
        try:
            path.unlink(missing_ok=True)
            memory = posix_ipc.SharedMemory(
                f"/{path.name}", posix_ipc.O_CREX, mode=0o600, size=size_bytes
            )
            fd = _private_copy(memory.fd)
            memory.close_fd()
            os.fchown(fd, owner.uid, owner.gid)
            os.fchmod(fd, owner.mode)
        except (OSError, posix_ipc.Error, ValueError) as error:
            path.unlink(missing_ok=True)
            raise RegionError(
                f"cannot make {path}: {error}", hint="kvgpud must run as root to serve VMs"
            ) from error
        return cls(fd, size_bytes, pinned_bytes, uuid, path)

    @classmethod
    def adopt_named(
        cls, uuid: UUID, size_bytes: int, pinned_bytes: int, kept: Iterable[tuple[int, int]] = ()
    ) -> Self:
        """Open the region of a VM that ran on while kvgpud was away.

        Free all but the ranges `kept`: (offset, bytes).
        """
        check_region_size(size_bytes)
        path = region_path(uuid)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise RegionError(
                f"cannot open {path}: {error.strerror}", hint="stop and start the VM"
            ) from error
        stat = os.fstat(fd)
        if stat.st_size != size_bytes or stat.st_uid != os.geteuid():
            os.close(fd)
            raise RegionError(
                f"{path} has {stat.st_size} B and owner {stat.st_uid}, "
                f"wanted are {size_bytes} B and {os.geteuid()}",
                hint="stop and start the VM",
            )
        begin = ALIGN_BYTES
        for offset, kept_bytes in (*sorted(kept), (size_bytes, 0)):
            if offset > begin:
                punch_hole(fd, begin, offset - begin)
            begin = offset + kept_bytes
        return cls(fd, size_bytes, pinned_bytes, uuid, path)

    @classmethod
    def create_memfd(cls, uuid: UUID, size_bytes: int, pinned_bytes: int) -> Self:
        """Make a region without a name, sealed so that no client can shrink it under the others."""
        check_region_size(size_bytes)
        fd = os.memfd_create(f"kvgpu-{uuid}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd, size_bytes, pinned_bytes, uuid, None)

    @classmethod
    def adopt_memfd(cls, fd: int, uuid: UUID, size_bytes: int, pinned_bytes: int) -> Self:
        """Take up a region without a name from a descriptor that came back; owns it from now on.

        Raises RegionError if it is not one that create_memfd() made.
        """
        try:
            is_ours = fcntl.fcntl(fd, fcntl.F_GET_SEALS) == _SEALS
        except OSError:
            is_ours = False
        if not is_ours or os.fstat(fd).st_size != size_bytes:
            raise RegionError("a descriptor that came back is not the region's")
        return cls(fd, size_bytes, pinned_bytes, uuid, None)

    @property
    def inode(self) -> int:
        return os.fstat(self.fd).st_ino

    def take_block(self, offset: int) -> None:
        """Give a block to the session that has had it under the earlier kvgpud."""
        self._ranges.take(offset, BLOCK_BYTES)

    def take_extent(self, offset: int, size_bytes: int) -> None:
        self._ranges.take(offset, size_bytes)
        self._pinned_left_bytes -= size_bytes

    def allocate_block(self) -> int | None:
        """Return the offset of a zeroed block for a session, or None if there is no room."""
        found = self._ranges.allocate(BLOCK_BYTES)
        return found[0] if found else None

    def allocate_extent(self, size_bytes: int) -> tuple[int, int] | None:
        """Return (offset, bytes) of zeroed pinned memory; None if the region's share is used up."""
        if not 0 < size_bytes <= self._pinned_left_bytes:
            return None
        found = self._ranges.allocate(size_bytes, from_top=True)
        if found:
            self._pinned_left_bytes -= found[1]
        return found

    def free_block(self, offset: int) -> None:
        self._free(offset)

    def free_extent(self, offset: int) -> None:
        self._pinned_left_bytes += self._free(offset)

    def _free(self, offset: int) -> int:
        # If the pages cannot be given back, the range stays taken: better a leak than another
        # session's data in it.
        punch_hole(self.fd, offset, self._ranges.size_bytes(offset))
        return self._ranges.free(offset)

    def close(self) -> None:
        """Forget the region: close the descriptor and remove the file, if there is one."""
        if self.fd < 0:
            return
        if self.path:
            self.path.unlink(missing_ok=True)
        self.close_keeping_file()

    def close_keeping_file(self) -> None:
        """Close the descriptor only: kvgpud ends, the VM runs on and is adopted later."""
        os.close(self.fd)
        self.fd = -1


def region_path(uuid: UUID) -> Path:
    return SHM_DIR / f"kvgpu-{uuid}"


def check_unused(uuid: UUID, workers: Collection[int] = ()) -> None:
    """Raise RegionError if a process other than `workers` has the region of VM `uuid` mapped."""
    path = region_path(uuid)
    users = set(_pids_that_map(path)) - set(workers) if path.exists() else set()
    if users:
        raise RegionError(
            f"{path} is still in use by process {', '.join(map(str, sorted(users)))}",
            hint="end that process (a QEMU of the same VM?), then start the VM again",
        )


def punch_hole(fd: int, offset: int, size_bytes: int) -> None:
    """Give the pages back; whoever gets the range next finds zeroes."""
    result = _libc.fallocate(
        ctypes.c_int(fd),
        ctypes.c_int(_FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE),
        ctypes.c_int64(offset),
        ctypes.c_int64(size_bytes),
    )
    if result != 0:
        error = ctypes.get_errno()
        raise RegionError(f"cannot free region memory: {os.strerror(error)}")


def _private_copy(fd: int) -> int:
    # posix_ipc leaves its descriptor inheritable on some versions.
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _check_free_memory(pinned_bytes: int) -> None:
    # tmpfs pages are taken on demand; a guest that touches one that is not there dies of SIGBUS.
    stat = os.statvfs(SHM_DIR)
    free_bytes = stat.f_bavail * stat.f_frsize
    wanted_bytes = pinned_bytes + BLOCK_BYTES
    if free_bytes < wanted_bytes:
        raise RegionError(
            f"{SHM_DIR} has {format_size(free_bytes)} left, "
            f"the VM may take {format_size(wanted_bytes)}",
            hint=f"mount -o remount,size=LARGER {SHM_DIR}, or a smaller `kvgpu vm xml --pinned`",
        )


def _pids_that_map(path: Path) -> list[int]:
    """Return the processes that have `path` mapped, as far as this user may look."""
    needle = os.fsencode(str(path))
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_bytes().splitlines()
        except OSError:
            continue  # it has ended, or belongs to someone else
        if any(line.endswith(needle) for line in lines):
            found.append(int(maps.parent.name))
    return found
