# SPDX-License-Identifier: Apache-2.0
"""Regions and their division: no overlap, no leak, zeroes for a new owner, no stale files."""

from __future__ import annotations

import asyncio
import grp
import mmap
import os
import pwd
import re
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from framework.kvgpud import run
from framework.own_shm import in_own_shm
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvgpu.host.errors import RegionError
from kvgpu.host.ivshmem import range_freer
from kvgpu.host.ivshmem.allocator import ALIGN_BYTES, BLOCK_BYTES, RangeAllocator
from kvgpu.host.ivshmem.placement import SHM_DIR
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
NOBODY = pwd.getpwnam("nobody").pw_uid


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
    owner = Ownership(0, grp.getgrnam("users").gr_gid)
    region = Region.create_named(uuid, 256 * MIB, 64 * MIB, owner)
    stat = region_path(uuid).stat()
    assert (stat.st_size, stat.st_mode & 0o777) == (256 * MIB, 0o660)
    assert (stat.st_uid, stat.st_gid) == (owner.uid, owner.gid)
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
    stat = os.statvfs(SHM_DIR)
    with pytest.raises(RegionError, match="left"):
        Region.create_named(uuid, 256 * MIB, stat.f_blocks * stat.f_frsize + 1, ME)


MAKE_ONE = """
from uuid import uuid4
from kvgpu.host.ivshmem.region import Ownership, Region
Region.create_named(uuid4(), 256 << 20, 64 << 20, Ownership(0, 0))
"""


def test_shm_without_room_is_refused_before_the_vm_starts() -> None:
    done = in_own_shm("size=64m", MAKE_ONE)
    assert done.returncode == 1
    assert "/dev/shm has 64 MiB left, the VM may take 80 MiB" in done.stderr
    assert "mount -o remount,size=LARGER /dev/shm" in done.stderr


def test_read_only_shm_is_refused_with_what_to_do() -> None:
    done = in_own_shm("ro", MAKE_ONE)
    assert done.returncode == 1
    assert "cannot make /dev/shm/kvgpu-" in done.stderr
    assert "mount -o remount,rw /dev/shm" in done.stderr


@pytest.mark.parametrize("kind", ["read-only", "another's", "a link"])
def test_left_over_is_replaced_whatever_it_is(uuid: UUID, tmp_path: Path, kind: str) -> None:
    path = region_path(uuid)
    target = tmp_path / "target"
    target.write_bytes(b"not ours")
    if kind == "a link":
        path.symlink_to(target)
    else:
        path.write_bytes(b"stale")
        path.chmod(0o400)
        os.chown(path, NOBODY if kind == "another's" else 0, -1)
    region = Region.create_named(uuid, 256 * MIB, 64 * MIB, ME)
    found = path.lstat()
    assert (found.st_uid, found.st_mode & 0o777, found.st_size) == (ME.uid, 0o660, 256 * MIB)
    assert target.read_bytes() == b"not ours"
    region.close()


def adopted_and_closed(uuid: UUID, made_by: int | None = None) -> os.stat_result:
    """Adopt a region as it should be, and return what its file was then."""

    async def body() -> None:
        region = Region.adopt_named(uuid, 256 * MIB, 64 * MIB, ME, made_by=made_by)
        found.append(region_path(uuid).stat())
        region.close()

    found: list[os.stat_result] = []
    run(body)
    return found[0]


def test_adopting_another_size_is_refused(uuid: UUID) -> None:
    Region.create_named(uuid, 256 * MIB, 64 * MIB, ME).close_keeping_file()
    with pytest.raises(RegionError, match="stop and start"):
        Region.adopt_named(uuid, 512 * MIB, 64 * MIB, ME)
    adopted_and_closed(uuid)


def test_file_of_another_user_is_not_adopted_and_qemus_is(uuid: UUID) -> None:
    Region.create_named(uuid, 256 * MIB, 64 * MIB, ME).close_keeping_file()
    os.chown(region_path(uuid), NOBODY, -1)
    region_path(uuid).chmod(0o644)
    with pytest.raises(RegionError, match=f"owner {NOBODY}, wanted are .* and 0"):
        Region.adopt_named(uuid, 256 * MIB, 64 * MIB, ME)
    assert region_path(uuid).stat().st_uid == NOBODY
    found = adopted_and_closed(uuid, made_by=NOBODY)
    assert (found.st_uid, found.st_mode & 0o777) == (ME.uid, 0o660)


def test_link_is_not_adopted(uuid: UUID, tmp_path: Path) -> None:
    Region.create_named(uuid, 256 * MIB, 64 * MIB, ME).close_keeping_file()
    second = tmp_path / "second"
    os.link(region_path(uuid), region_path(uuid).with_name(f"kvgpu-{uuid}-second"))
    try:
        with pytest.raises(RegionError, match="no file of its own"):
            Region.adopt_named(uuid, 256 * MIB, 64 * MIB, ME)
    finally:
        region_path(uuid).with_name(f"kvgpu-{uuid}-second").unlink()
    region_path(uuid).unlink()
    second.write_bytes(b"")
    region_path(uuid).symlink_to(second)
    with pytest.raises(RegionError, match="cannot open"):
        Region.adopt_named(uuid, 256 * MIB, 64 * MIB, ME)


def test_memfd_cannot_be_resized() -> None:
    region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, 4096)
    region.close()


async def all_freed(region: Region) -> None:
    await region.when_freed(lambda: None)


def test_freed_memory_is_zero_for_the_next_owner() -> None:
    async def body() -> None:
        region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
        block = region.allocate_block()
        extent = region.allocate_extent(3 * MIB)
        assert block is not None
        assert extent is not None
        for offset in (block, extent[0]):
            os.pwrite(region.fd, b"secret", offset)
        region.free_block(block)
        region.free_extents([extent[0]])
        await all_freed(region)
        assert region.allocate_block() == block
        assert region.allocate_extent(3 * MIB) == extent
        for offset in (block, extent[0]):
            assert os.pread(region.fd, 6, offset) == b"\0" * 6
        region.close()

    run(body)


def test_range_whose_pages_cannot_be_freed_is_not_given_out_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(fd: int, offset: int, size_bytes: int) -> None:
        raise RegionError("cannot free region memory")

    async def body() -> None:
        region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
        block = region.allocate_block()
        extent = region.allocate_extent(60 * MIB)
        assert block is not None
        assert extent is not None
        with monkeypatch.context() as patch:
            patch.setattr(range_freer, "punch_hole", fail)
            region.free_block(block)
            region.free_extents([extent[0]])
            await all_freed(region)
        assert caplog.text.count("left taken: cannot free") == 2
        assert region.allocate_block() != block
        assert region.allocate_extent(60 * MIB) is None
        region.free_extents([extent[0]])
        await all_freed(region)
        assert region.allocate_extent(60 * MIB) == extent
        region.close()

    run(body)


def test_extent_of_two_sessions_is_freed_by_the_last() -> None:
    async def body() -> None:
        region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
        extent = region.allocate_extent(64 * MIB)
        assert extent is not None
        region.hold_extent(extent[0])
        region.free_extents([extent[0]])
        await all_freed(region)
        assert region.allocate_extent(1) is None
        region.free_extents([extent[0]])
        assert await region.when_freed(lambda: region.allocate_extent(64 * MIB)) == extent
        region.close()
        again = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
        again.take_extent(*extent)  # by two sessions that outlived a kvgpud
        again.take_extent(*extent)
        again.free_extents([extent[0]])
        assert again.allocate_extent(1) is None
        again.close()

    run(body)


def test_pinned_memory_is_limited_and_comes_back() -> None:
    async def body() -> None:
        region = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
        extent = region.allocate_extent(64 * MIB)
        assert extent is not None
        assert region.allocate_extent(1) is None
        region.free_extents([extent[0]])
        with pytest.raises(RegionError, match="being freed already"):
            region.free_extents([extent[0]])
        assert region.allocate_extent(64 * MIB) is None  # not before it is zero
        assert await region.when_freed(lambda: region.allocate_extent(64 * MIB)) == extent
        assert await region.when_freed(lambda: region.allocate_extent(1)) is None
        with pytest.raises(RegionError, match="nothing is allocated"):
            region.free_extents([4 * MIB])
        region.close()

    run(body)


def test_adopted_region_keeps_what_is_in_use_and_nothing_else() -> None:
    async def body() -> None:
        first = Region.create_memfd(uuid4(), 256 * MIB, 128 * MIB)
        kept = [(ALIGN_BYTES, BLOCK_BYTES), (100 * MIB, 4 * MIB)]
        stale = (ALIGN_BYTES + BLOCK_BYTES, 96 * MIB, 104 * MIB, 254 * MIB)
        for offset in (*stale, *(offset for offset, _ in kept)):
            os.pwrite(first.fd, b"used", offset)
        region = Region.adopt_memfd(os.dup(first.fd), first.uuid, 256 * MIB, 128 * MIB, kept)
        region.take_block(kept[0][0])
        region.take_extent(*kept[1])
        assert region.allocate_extent(2 * MIB) is None  # nothing is zero yet
        await all_freed(region)
        assert [os.pread(region.fd, 4, offset) for offset in stale] == [bytes(4)] * 4
        assert [os.pread(region.fd, 4, offset) for offset, _ in kept] == [b"used"] * 2
        assert region.allocate_extent(124 * MIB) == (256 * MIB - 124 * MIB, 124 * MIB)
        for each in (first, region):
            each.close()

    run(body)


def test_memory_is_freed_while_others_are_served() -> None:
    async def body() -> None:
        region = Region.create_memfd(uuid4(), GIB, 512 * MIB)
        offset, size_bytes = region.allocate_extent(512 * MIB) or (0, 0)
        for begin in range(offset, offset + size_bytes, MIB):
            os.pwrite(region.fd, bytes(MIB), begin)
        longest_s, n_turns = 0.0, 0
        region.free_extents([offset])
        freeing = asyncio.create_task(all_freed(region))
        while not freeing.done():
            begin_s = time.monotonic()
            await asyncio.sleep(0.001)
            longest_s, n_turns = max(longest_s, time.monotonic() - begin_s), n_turns + 1
        assert n_turns > size_bytes // range_freer.SLICE_BYTES
        print(f"figure: 512 MiB freed, the event loop was away for {longest_s * 1e3:.0f} ms")
        region.close()

    run(body)


def test_closing_a_region_stops_its_freeing() -> None:
    async def body() -> None:
        region = Region.create_memfd(uuid4(), GIB, 512 * MIB)
        offset, _ = region.allocate_extent(512 * MIB) or (0, 0)
        n_before = len(os.listdir("/proc/self/fd"))
        region.free_extents([offset])
        await asyncio.sleep(0)  # the first part of it is under way
        region.close()
        await all_freed(region)
        range_freer.wait_for_closing(10)
        assert not range_freer.is_closing()
        assert len(os.listdir("/proc/self/fd")) == n_before - 1
        assert region.allocate_extent(512 * MIB) is None

    run(body)
