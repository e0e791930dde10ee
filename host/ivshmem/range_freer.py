# SPDX-License-Identifier: Apache-2.0
"""Gives parts of a region back: zeroed before anybody else gets them, while kvgpud goes on serving.

The kernel takes a quarter of a second for a GiB of small pages, so that is done by a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from kvgpu.host.errors import RegionError
from kvgpu.host.ivshmem.allocator import RangeAllocator
from kvgpu.host.units import MIB, format_size

_log = logging.getLogger(__name__)

SLICE_BYTES = 64 * MIB  # that many at a time: others' turns come between
_MAX_WAITING = 256  # a guest cannot make kvgpud keep more of its requests
# linux/falloc.h; Python's os module has only posix_fallocate.
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_closing: set[threading.Thread] = set()
_libc = ctypes.CDLL(None, use_errno=True)
_Found = TypeVar("_Found")


class RangeFreer:
    """Frees ranges of the file `fd`, which stay taken until their pages are gone."""

    def __init__(self, fd: int, ranges: RangeAllocator, name: str) -> None:
        self._fd = fd
        self._ranges = ranges
        self._name = name
        self._pending: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # one thread for each region
        self._some_freed = asyncio.Event()
        self._n_waiting = 0

    def free(self, offsets: Iterable[int], on_freed: Callable[[int], None] | None = None) -> None:
        """Begin to free what starts at `offsets`; `on_freed` gets the bytes of each once it is.

        Raises RegionError if one is not taken, or is being freed already.
        """
        todo = {offset: self._ranges.size_bytes(offset) for offset in offsets}
        if twice := self._pending.intersection(todo):
            raise RegionError(f"what starts at offset {min(twice):#x} is being freed already")
        self._pending.update(todo)
        task = asyncio.create_task(self._free(todo, on_freed))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def when_freed(self, allocate: Callable[[], _Found | None]) -> _Found | None:
        """Return what `allocate` finds; while something is being freed, None is tried again."""
        found = allocate()
        if found is not None or self._n_waiting >= _MAX_WAITING:
            return found
        self._n_waiting += 1
        try:
            while found is None and self._tasks:
                await self._some_freed.wait()
                found = allocate()
        finally:
            self._n_waiting -= 1
        return found

    def stop(self) -> None:
        """Free nothing more: `fd` is about to be closed."""
        self._fd = -1

    async def _free(self, todo: dict[int, int], on_freed: Callable[[int], None] | None) -> None:
        for offset, size_bytes in todo.items():
            try:
                await self._punch(offset, size_bytes)
            except (RegionError, OSError) as error:
                # Better a leak than another session's data in it.
                what = f"{format_size(size_bytes)} at {offset:#x}"
                _log.error("region %s: %s left taken: %s", self._name, what, error)
                self._pending.discard(offset)
                continue
            if self._fd < 0:
                return
            self._pending.discard(offset)
            self._ranges.free(offset)
            if on_freed:
                on_freed(size_bytes)
            self._wake()

    async def _punch(self, offset: int, size_bytes: int) -> None:
        end = offset + size_bytes
        for begin in range(offset, end, SLICE_BYTES):
            async with self._turn:
                if self._fd < 0:
                    return
                # Its own descriptor: ours may be closed, and the number given away, meanwhile.
                fd = os.dup(self._fd)
                await asyncio.to_thread(_punch_and_close, fd, begin, min(SLICE_BYTES, end - begin))

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake()

    def _wake(self) -> None:
        self._some_freed.set()
        self._some_freed.clear()


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
        raise RegionError(
            f"cannot free region memory: {os.strerror(error)}", hint="stop and start the VM"
        )


def close_last(fd: int) -> None:
    """Close what may be the last descriptor of a region: its memory goes, which takes as long."""

    def close() -> None:
        os.close(fd)
        _closing.discard(thread)

    thread = threading.Thread(target=close, daemon=True)  # kvgpud's end need not wait for it
    _closing.add(thread)
    thread.start()


def is_closing() -> bool:
    return bool(_closing)


def wait_for_closing(limit_s: float) -> None:
    """Wait until the memory of regions that were closed is free."""
    deadline_s = time.monotonic() + limit_s
    for thread in list(_closing):
        thread.join(max(0, deadline_s - time.monotonic()))


def _punch_and_close(fd: int, offset: int, size_bytes: int) -> None:
    try:
        punch_hole(fd, offset, size_bytes)
    finally:
        os.close(fd)
