# SPDX-License-Identifier: Apache-2.0
"""Shared regions: the file behind a VM's ivshmem device, or a memfd for programs of this host.

Owns the files under /dev/shm. Writes the superblock and never reads anything back: the guest can
write all of it. Layout: PROTOCOL.md §2.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID

import posix_ipc

from kvgpu.host import control_frames
from kvgpu.host.errors import RegionError
from kvgpu.host.ivshmem.allocator import ALIGN_BYTES, BLOCK_BYTES, RangeAllocator
from kvgpu.host.ivshmem.doorbells import Doorbells
from kvgpu.host.ivshmem.placement import (
    ANYWHERE,
    SHM_DIR,
    Placement,
    check_shm_pages,
    make_memfd,
    place,
)
from kvgpu.host.ivshmem.range_freer import SLICE_BYTES, RangeFreer, close_last
from kvgpu.host.units import KIB, MIB, format_size, is_power_of_two, round_up_to_power_of_two

MIN_REGION_BYTES = 256 * MIB
N_BLOCKS_PLANNED = 32  # sessions for which a region has room beside its pinned memory
SUPERBLOCK_MAGIC = 0x5550475651564B00
_SUPERBLOCK = struct.Struct("<QHHIQ16s")

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_Found = TypeVar("_Found")


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


def pinned_bytes_in(region_bytes: int) -> int:
    """Return what can be pinned in a region beside N_BLOCKS_PLANNED sessions."""
    return region_bytes - ALIGN_BYTES - N_BLOCKS_PLANNED * BLOCK_BYTES


def check_region_size(size_bytes: int) -> None:
    if size_bytes < MIN_REGION_BYTES or not is_power_of_two(size_bytes):
        raise RegionError(
            f"a region of {format_size(size_bytes)} is not a power of two of at least 256 MiB",
            hint="make the <shmem> size with `kvgpu vm xml`",
        )


class Region:
    """An open region: its descriptor, and who got which part of it.

    What is given back is free, and zeroed, a while later: `when_freed` waits for it.
    """

    def __init__(
        self,
        fd: int,
        size_bytes: int,
        pinned_bytes: int,
        uuid: UUID,
        path: Path | None,
        kept: Iterable[tuple[int, int]] | None = None,
    ) -> None:
        """Take over `fd`, and begin to free all but the ranges `kept`; None: free nothing."""
        self.fd = fd
        self.size_bytes = size_bytes
        self.uuid = uuid
        self.path = path  # None for a memfd
        self.doorbells: Doorbells | None = None  # of an ivshmem-doorbell device; closed with it
        self._ranges = RangeAllocator(ALIGN_BYTES, size_bytes)
        self._freer = RangeFreer(fd, self._ranges, str(uuid))
        self._pinned_left_bytes = pinned_bytes
        self._holders: Counter[int] = Counter()  # sessions that have an extent, by its offset
        _write_superblock(fd, size_bytes, uuid)
        if kept is not None:
            self._free_all_but(kept)

    @classmethod
    def create_named(
        cls,
        uuid: UUID,
        size_bytes: int,
        pinned_bytes: int,
        owner: Ownership,
        placement: Placement = ANYWHERE,
    ) -> Self:
        """Make /dev/shm/kvgpu-UUID for a VM that is about to start; a left-over file is replaced.

        Raises RegionError if the size is illegal, memory or the configured pages are not to be had,
        or a process maps a left-over.
        """
        check_region_size(size_bytes)
        check_shm_pages(placement)
        check_free_memory(pinned_bytes)
        check_unused(uuid)
        path = region_path(uuid)
        try:
            path.unlink(missing_ok=True)
            fd = _make_file(path, size_bytes, owner, placement.nodes)
        except (OSError, posix_ipc.Error, ValueError) as error:
            raise RegionError(f"cannot make {path}: {error}", hint=_to_do(path, error)) from error
        return cls(fd, size_bytes, pinned_bytes, uuid, path)

    @classmethod
    def adopt_named(
        cls,
        uuid: UUID,
        size_bytes: int,
        pinned_bytes: int,
        owner: Ownership,
        *,
        kept: Iterable[tuple[int, int]] = (),
        made_by: int | None = None,
        nodes: frozenset[int] = frozenset(),
    ) -> Self:
        """Open the region of a VM that was started, or ran on, without this kvgpud.

        Free all but the ranges `kept`: (offset, bytes). A file of the user `made_by`, whose QEMU
        makes what it does not find, becomes `owner`'s, too.
        """
        check_region_size(size_bytes)
        path = region_path(uuid)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise RegionError(
                f"cannot open {path}: {error.strerror}", hint="stop and start the VM"
            ) from error
        try:
            _check_adoptable(path, fd, size_bytes, made_by)
            place(fd, size_bytes, nodes)
            os.fchown(fd, owner.uid, owner.gid)
            os.fchmod(fd, owner.mode)
            return cls(fd, size_bytes, pinned_bytes, uuid, path, kept)
        except OSError as error:
            os.close(fd)
            raise RegionError(
                f"cannot take over {path}: {error.strerror}", hint="stop and start the VM"
            ) from error
        except RegionError:
            os.close(fd)
            raise

    @classmethod
    def create_memfd(
        cls, uuid: UUID, size_bytes: int, pinned_bytes: int, placement: Placement = ANYWHERE
    ) -> Self:
        """Make a region without a name, sealed so that no client can shrink it under the others.

        Raises RegionError if the size is illegal or the configured pages are not to be had.
        """
        check_region_size(size_bytes)
        fd = make_memfd(f"kvgpu-{uuid}", size_bytes, placement)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd, size_bytes, pinned_bytes, uuid, None)

    @classmethod
    def adopt_memfd(
        cls,
        fd: int,
        uuid: UUID,
        size_bytes: int,
        pinned_bytes: int,
        kept: Iterable[tuple[int, int]] | None = None,
    ) -> Self:
        """Take up a region without a name from a descriptor that came back; owns it from now on.

        Free all but the ranges `kept`, as adopt_named() does; None: free nothing.
        Raises RegionError if it is not one that create_memfd() made.
        """
        try:
            is_ours = fcntl.fcntl(fd, fcntl.F_GET_SEALS) == _SEALS
        except OSError:
            is_ours = False
        if not is_ours or os.fstat(fd).st_size != size_bytes:
            raise RegionError(
                "a descriptor that came back is not the region's", hint="start the program again"
            )
        return cls(fd, size_bytes, pinned_bytes, uuid, None, kept)

    @property
    def inode(self) -> int:
        return os.fstat(self.fd).st_ino

    def take_block(self, offset: int) -> None:
        """Give a block to the session that has had it under the earlier kvgpud."""
        self._ranges.take(offset, BLOCK_BYTES)

    def take_extent(self, offset: int, size_bytes: int) -> None:
        if not self._holders[offset]:
            self._ranges.take(offset, size_bytes)
            self._pinned_left_bytes -= size_bytes
        self.hold_extent(offset)

    def hold_extent(self, offset: int) -> None:
        """One more session has the extent: it is free when all have given it back."""
        self._holders[offset] += 1

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
            self.hold_extent(found[0])
        return found

    async def when_freed(self, allocate: Callable[[], _Found | None]) -> _Found | None:
        """Return what `allocate` finds in this region; None is tried again while parts of it are
        being freed."""
        return await self._freer.when_freed(allocate)

    def free_block(self, offset: int) -> None:
        self._freer.free([offset])

    def free_extents(self, offsets: Collection[int]) -> None:
        unused = [offset for offset in offsets if self._holders[offset] <= 1]
        self._freer.free(unused, self._regain)
        for offset in offsets:
            self._holders[offset] -= 1
        self._holders = +self._holders

    def _regain(self, size_bytes: int) -> None:
        self._pinned_left_bytes += size_bytes

    def _free_all_but(self, kept: Iterable[tuple[int, int]]) -> None:
        begin = ALIGN_BYTES
        parts = []  # small ones: the first of them is of use soon
        for offset, kept_bytes in (*sorted(kept), (self.size_bytes, 0)):
            for part in range(begin, offset, SLICE_BYTES):
                self._ranges.take(part, min(SLICE_BYTES, offset - part))
                parts.append(part)
            begin = max(begin, offset + kept_bytes)
        self._freer.free(parts)

    def close(self) -> None:
        """Forget the region: close the descriptor and remove the file, if there is one."""
        if self.fd < 0:
            return
        if self.path:
            self.path.unlink(missing_ok=True)
        if self.doorbells:
            self.doorbells.end()
            self.doorbells = None
        self._freer.stop()
        close_last(self.fd)
        self.fd = -1

    def close_keeping_file(self) -> None:
        """Close the descriptors only: kvgpud ends, the VM runs on and is adopted later."""
        if self.doorbells:
            self.doorbells.close()
        self._freer.stop()
        os.close(self.fd)
        self.fd = -1


def region_path(uuid: UUID) -> Path:
    return SHM_DIR / f"kvgpu-{uuid}"


def check_unused(uuid: UUID, workers: Collection[int] = (), server: Path | None = None) -> None:
    """Raise RegionError if a process other than `workers` has the region of VM `uuid` mapped.

    `server`: the socket of its ivshmem server, where it has one and the region no name.
    """
    path = server or region_path(uuid)
    mapped = f"/memfd:kvgpu-{uuid} (deleted)" if server else str(path)
    users = set(_pids_that_map(mapped)) - set(workers) if path.exists() else set()
    if users:
        raise RegionError(
            f"{mapped} is still in use by process {', '.join(map(str, sorted(users)))}",
            hint="end that process (a QEMU of the same VM?), then start the VM again",
        )


def _write_superblock(fd: int, size_bytes: int, uuid: UUID) -> None:
    superblock = _SUPERBLOCK.pack(
        *(SUPERBLOCK_MAGIC, control_frames.PROTOCOL_MAJOR, control_frames.PROTOCOL_MINOR),
        *(control_frames.FEATURES, size_bytes, uuid.bytes),
    )
    try:
        os.pwrite(fd, superblock, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        with mmap.mmap(fd, ALIGN_BYTES) as mapping:  # reserved huge pages cannot be written to
            mapping[: len(superblock)] = superblock


def _make_file(path: Path, size_bytes: int, owner: Ownership, nodes: frozenset[int]) -> int:
    memory = posix_ipc.SharedMemory(f"/{path.name}", posix_ipc.O_CREX, mode=0o600, size=size_bytes)
    try:
        fd = _private_copy(memory.fd)
        memory.close_fd()
        place(fd, size_bytes, nodes)
        os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, owner.mode)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return fd


def _to_do(path: Path, error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EROFS:
        return f"mount -o remount,rw {path.parent}"
    if code == errno.EISDIR:
        return f"rmdir {path}"
    return "kvgpud must run as root to serve VMs"


def _private_copy(fd: int) -> int:
    # posix_ipc leaves its descriptor inheritable on some versions.
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def check_free_memory(pinned_bytes: int, *, is_named: bool = True) -> None:
    """Raise RegionError where a region with `pinned_bytes` could not be filled."""
    # tmpfs pages are taken on demand; a guest that touches one that is not there dies of SIGBUS.
    filesystem = os.statvfs(SHM_DIR)
    shm_bytes = filesystem.f_bavail * filesystem.f_frsize
    free_bytes = shm_bytes if is_named else _available_bytes()
    wanted_bytes = pinned_bytes + BLOCK_BYTES
    if free_bytes < wanted_bytes:
        larger = f"mount -o remount,size=LARGER {SHM_DIR}" if is_named else "end other VMs"
        raise RegionError(
            f"{SHM_DIR if is_named else 'the host'} has {format_size(free_bytes)} left, "
            f"the VM may take {format_size(wanted_bytes)}",
            hint=f"{larger}, or a smaller `kvgpu vm xml --pinned`",
        )


def _check_adoptable(path: Path, fd: int, size_bytes: int, made_by: int | None) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise RegionError(f"{path} is no file of its own", hint=f"rm {path}, stop and start the VM")
    if found.st_size != size_bytes or found.st_uid not in (os.geteuid(), made_by):
        raise RegionError(
            f"{path} has {found.st_size} B and owner {found.st_uid}, "
            f"wanted are {size_bytes} B and {os.geteuid()}",
            hint="stop and start the VM",
        )


def _available_bytes() -> int:
    """Return the memory that the host could give away, as proc_meminfo(5) estimates it."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return int(found[1]) * KIB if found else 0


def _pids_that_map(path: str) -> list[int]:
    """Return the processes that have `path` mapped, as far as this user may look."""
    needle = os.fsencode(path)
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_bytes().splitlines()
        except OSError:
            continue  # it has ended, or belongs to someone else
        if any(line.endswith(needle) for line in lines):
            found.append(int(maps.parent.name))
    return found
