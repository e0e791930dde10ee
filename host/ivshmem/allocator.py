# SPDX-License-Identifier: Apache-2.0
"""Divides a region into blocks and extents. Pure arithmetic: touches no memory."""

from __future__ import annotations

from bisect import bisect_left, insort

from kvgpu.host.errors import RegionError
from kvgpu.host.units import MIB

ALIGN_BYTES = 2 * MIB
BLOCK_BYTES = 16 * MIB


class RangeAllocator:
    """First-fit over [begin, end) in units of ALIGN_BYTES; free ranges are kept merged and sorted.

    Blocks are taken from the bottom, extents from the top, so that small blocks do not cut up the
    space that large extents need.
    """

    def __init__(self, begin: int, end: int) -> None:
        if begin % ALIGN_BYTES or end % ALIGN_BYTES or begin >= end:
            raise RegionError(f"cannot divide [{begin}, {end}): not multiples of {ALIGN_BYTES} B")
        self._free: list[tuple[int, int]] = [(begin, end)]
        self._used: dict[int, int] = {}  # offset -> bytes

    @property
    def free_bytes(self) -> int:
        return sum(end - begin for begin, end in self._free)

    def allocate(self, size_bytes: int, *, from_top: bool = False) -> tuple[int, int] | None:
        """Return (offset, bytes rounded up to ALIGN_BYTES), or None if no free range is enough."""
        if size_bytes <= 0:
            raise RegionError(f"cannot allocate {size_bytes} B")
        size_bytes = -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
        indices = range(len(self._free))
        for i in reversed(indices) if from_top else indices:
            begin, end = self._free[i]
            if end - begin < size_bytes:
                continue
            offset = end - size_bytes if from_top else begin
            rest = (begin, offset) if from_top else (offset + size_bytes, end)
            self._free[i : i + 1] = [rest] if rest[0] < rest[1] else []
            self._used[offset] = size_bytes
            return offset, size_bytes
        return None

    def take(self, offset: int, size_bytes: int) -> None:
        """Take exactly [offset, offset + size_bytes), which somebody has had all along."""
        end = offset + size_bytes
        i = next((i for i, (b, e) in enumerate(self._free) if b <= offset and end <= e), None)
        if i is None or offset % ALIGN_BYTES or size_bytes % ALIGN_BYTES or size_bytes <= 0:
            raise RegionError(f"cannot take {size_bytes} B at {offset:#x}: not free")
        begin, free_end = self._free[i]
        rest = [(begin, offset), (end, free_end)]
        self._free[i : i + 1] = [(b, e) for b, e in rest if b < e]
        self._used[offset] = size_bytes

    def size_bytes(self, offset: int) -> int:
        """Return the bytes of what starts at `offset`."""
        size_bytes = self._used.get(offset)
        if size_bytes is None:
            raise RegionError(f"nothing is allocated at offset {offset:#x}")
        return size_bytes

    def free(self, offset: int) -> int:
        """Give back what starts at `offset`; return its bytes."""
        size_bytes = self.size_bytes(offset)
        del self._used[offset]
        begin, end = offset, offset + size_bytes
        i = bisect_left(self._free, (begin, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i > 0 and self._free[i - 1][1] == begin:
            begin = self._free.pop(i - 1)[0]
        insort(self._free, (begin, end))
        return size_bytes
