# SPDX-License-Identifier: Apache-2.0
"""Regions and their division: no overlap, no leak, zeroes for a new owner, no stale files."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvgpu.host.errors import RegionError
from kvgpu.host.ivshmem import region as region_module
from kvgpu.host.ivshmem.allocator import ALIGN_BYTES, BLOCK_BYTES, RangeAllocator
from kvgpu.host.ivshmem.region import (
    SUPERBLOCK_MAGIC,
    Ownership,
    Region,
    region_bytes_for,
    region_path,
)
from kvgpu.host.units import GIB, MIB

LAYOUT_H = Path(__file__).parents[2] / "protocol/include/kvgpu/layout.h"
ME = Ownership(os.getuid(), os.getgid())


class AllocatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.end = 128 * MIB
        self.allocator = RangeAllocator(ALIGN_BYTES, self.end)
        self.held: dict[int, int] = {}

    @rule(size_bytes=st.integers(1, 40 * MIB), from_top=st.booleans())
    def allocate(self, size_bytes: int, from_top: bool) -> None:
        found = self.allocator.allocate(size_bytes, from_top=from_top)
        if found is None:
            assert not self._has_gap(size_bytes)
        else:
            assert found[0] % ALIGN_BYTES == 0
            assert size_bytes <= found[1] < size_bytes + ALIGN_BYTES
            self.held[found[0]] = found[1]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        assert self.allocator.free(offset) == self.held.pop(offset)

    def _has_gap(self, size_bytes: int) -> bool:
        cursor = ALIGN_BYTES
        for offset, length in [*sorted(self.held.items()), (self.end, 0)]:
            if offset - cursor >= -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES:
                return True
            cursor = offset + length
        return False

    @invariant()
    def nothing_overlaps_or_leaks(self) -> None:
        cursor = ALIGN_BYTES
        for offset, length in sorted(self.held.items()):
            assert offset >= cursor
            cursor = offset + length
        assert cursor <= self.end
        assert sum(self.held.values()) + self.allocator.free_bytes == self.end - ALIGN_BYTES


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, deadline=None)


@pytest.fixture
def uuid() -> Iterator[UUID]:
    value = uuid4()
    yield value
    region_path(value).unlink(missing_ok=True)


def test_constants_agree_with_layout_h() -> None:
    header = LAYOUT_H.read_text()
    assert f"SUPERBLOCK_MAGIC = {SUPERBLOCK_MAGIC:#x}" in header
    assert re.search(rf"BLOCK_BYTES = {BLOCK_BYTES // MIB} \* MIB;", header)
    assert re.search(rf"EXTENT_ALIGN_BYTES = {ALIGN_BYTES // MIB} \* MIB;", header)


@pytest.mark.parametrize(
    ("pinned_bytes", "region_bytes"), [(64 * MIB, GIB), (GIB, 2 * GIB), (2 * GIB, 4 * GIB)]
)
def test_region_size_is_the_next_power_of_two(pinned_bytes: int, region_bytes: int) -> None:
    assert region_bytes_for(pinned_bytes) == region_bytes


def test_named_region_has_size_mode_and_superblock(uuid: UUID) -> None:
    region = Region.create_named(uuid, 256 * MIB, 64 * MIB, ME)
    stat = region_path(uuid).stat()
    assert (stat.st_size, stat.st_mode & 0o777) == (256 * MIB, 0o660)
    head = os.pread(region.fd, 40, 0)
    assert head[:8] == SUPERBLOCK_MAGIC.to_bytes(8, "little")
    assert head[24:40] == uuid.bytes
    region.close()
    assert not region_path(uuid).exists()


def test_stale_file_is_replaced(uuid: UUID) -> None:
    region_path(uuid).write_bytes(b"stale")
    region = Region.create_named(uuid, 256 * MIB, 64 * MIB, ME)
    assert region_path(uuid).stat().st_size == 256 * MIB
    region.close()


def test_file_in_use_is_an_error_that_names_the_process(uuid: UUID) -> None:
    region = Region.create_named(uuid, 256 * MIB, 64 * MIB, ME)
    with (
        mmap.mmap(region.fd, 4096),
        pytest.raises(RegionError, match=f"in use by process {os.getpid()}"),
    ):
        Region.create_named(uuid, 256 * MIB, 64 * MIB, ME)
    region.close()


@pytest.mark.parametrize("size_bytes", [0, 128 * MIB, 300 * MIB])
def test_illegal_size_is_refused(uuid: UUID, size_bytes: int) -> None:
    with pytest.raises(RegionError, match="power of two"):
        Region.create_named(uuid, size_bytes, MIB, ME)
    assert not region_path(uuid).exists()


def test_more_memory_than_there_is_is_refused(uuid: UUID) -> None:
    stat = os.statvfs(region_module.SHM_DIR)
    with pytest.raises(RegionError, match="left"):
        Region.create_named(uuid, 256 * MIB, stat.f_blocks * stat.f_frsize + 1, ME)


def test_adopting_another_size_is_refused(uuid: UUID) -> None:
    Region.create_named(uuid, 256 * MIB, 64 * MIB, ME).close_keeping_file()
    with pytest.raises(RegionError, match="stop and start"):
        Region.adopt_named(uuid, 512 * MIB, 64 * MIB)
    Region.adopt_named(uuid, 256 * MIB, 64 * MIB).close()


def test_memfd_cannot_be_resized() -> None:
    region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, 4096)
    region.close()


def test_freed_memory_is_zero_for_the_next_owner() -> None:
    region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
    block = region.allocate_block()
    extent = region.allocate_extent(3 * MIB)
    assert block is not None
    assert extent is not None
    for offset in (block, extent[0]):
        os.pwrite(region.fd, b"secret", offset)
    region.free_block(block)
    region.free_extent(extent[0])
    assert region.allocate_block() == block
    assert region.allocate_extent(3 * MIB) == extent
    for offset in (block, extent[0]):
        assert os.pread(region.fd, 6, offset) == b"\0" * 6
    region.close()


def test_range_whose_pages_cannot_be_freed_is_not_given_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(fd: int, offset: int, size_bytes: int) -> None:
        raise RegionError("cannot free region memory")

    region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
    block = region.allocate_block()
    extent = region.allocate_extent(60 * MIB)
    assert block is not None
    assert extent is not None
    with monkeypatch.context() as patch:
        patch.setattr(region_module, "punch_hole", fail)
        with pytest.raises(RegionError, match="cannot free"):
            region.free_block(block)
        with pytest.raises(RegionError, match="cannot free"):
            region.free_extent(extent[0])
    assert region.allocate_block() != block
    assert region.allocate_extent(60 * MIB) is None
    region.free_extent(extent[0])
    assert region.allocate_extent(60 * MIB) == extent
    region.close()


def test_pinned_memory_is_limited_and_comes_back() -> None:
    region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
    extent = region.allocate_extent(64 * MIB)
    assert extent is not None
    assert region.allocate_extent(1) is None
    region.free_extent(extent[0])
    assert region.allocate_extent(64 * MIB) == extent
    with pytest.raises(RegionError, match="nothing is allocated"):
        region.free_extent(4 * MIB)
    region.close()
