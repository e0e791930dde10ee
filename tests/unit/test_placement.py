# SPDX-License-Identifier: Apache-2.0
"""Huge pages and NUMA nodes of regions, as the kernel of this machine sees them."""

from __future__ import annotations

import asyncio
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from framework.own_shm import in_own_shm

from kvgpu.host.config import load_config
from kvgpu.host.errors import ConfigError, RegionError
from kvgpu.host.ivshmem import placement as placement_module
from kvgpu.host.ivshmem.placement import HUGE_PAGE_BYTES, Placement, Placer, nodes_of
from kvgpu.host.ivshmem.range_freer import wait_for_closing
from kvgpu.host.ivshmem.region import SUPERBLOCK_MAGIC, Ownership, Region, region_path
from kvgpu.host.units import MIB

ME = Ownership(os.getuid(), os.getgid())
REGION_BYTES = 256 * MIB
N_PAGES = REGION_BYTES // HUGE_PAGE_BYTES
NR_HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")

# Makes a region in a /dev/shm of its own and touches it as QEMU does: by a mapping.
TRANSPARENT = """
import mmap, os, re
from pathlib import Path
from uuid import uuid4
from kvgpu.host.ivshmem.placement import Placement
from kvgpu.host.ivshmem.region import Ownership, Region
owner, pages = Ownership(0, 0), Placement("transparent")
region = Region.create_named(uuid4(), 256 << 20, 64 << 20, owner, pages)
with region.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
    mapping[64 << 20] = 1
    of_file = Path("/proc/self/smaps").read_text().partition(str(region.path))[2]
    print(re.search(r"ShmemPmdMapped: +([0-9]+) kB", of_file)[1])
"""


@pytest.fixture
def uuid() -> Iterator[UUID]:
    value = uuid4()
    yield value
    region_path(value).unlink(missing_ok=True)


@pytest.fixture
def reserved_pages() -> Iterator[None]:
    """So many huge pages that one small region takes them all."""
    before = int(NR_HUGE_PAGES.read_text())
    NR_HUGE_PAGES.write_text(str(before + N_PAGES))
    assert int(NR_HUGE_PAGES.read_text()) == before + N_PAGES, "no contiguous memory is left"
    yield
    NR_HUGE_PAGES.write_text(str(before))


async def free(region: Region, block: int) -> None:
    region.free_block(block)
    await region.when_freed(lambda: None)


def smaps_of(text: str) -> str:
    return Path("/proc/self/smaps").read_text().partition(text)[2]


def test_transparent_huge_pages_are_what_the_region_is_made_of() -> None:
    done = in_own_shm("huge=within_size", TRANSPARENT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2048, "one page of 2 MiB, mapped as one"
    print(f"figure: transparent huge pages: ShmemPmdMapped {done.stdout.strip()} kB after one byte")


@pytest.mark.parametrize("option", ["never", "advise"])
def test_shm_that_gives_no_huge_pages_is_refused_where_they_are_configured(option: str) -> None:
    done = in_own_shm(f"huge={option}", TRANSPARENT)
    assert done.returncode == 1
    assert f"/dev/shm gives no huge pages ({option})" in done.stderr
    assert "mount -o remount,huge=within_size /dev/shm" in done.stderr


def test_memfd_is_refused_where_shared_memory_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "shmem_enabled"
    monkeypatch.setattr(placement_module.memfd_huge_pages, "__defaults__", (setting,))
    setting.write_text("always within_size advise [never] deny force\n")
    with pytest.raises(RegionError, match=r"no huge pages \(never\)") as raised:
        Region.create_memfd(uuid4(), REGION_BYTES, MIB, Placement("transparent"))
    assert "echo within_size >" in raised.value.hint
    setting.write_text("always [within_size] advise never deny force\n")
    Region.create_memfd(uuid4(), REGION_BYTES, MIB, Placement("transparent")).close()


@pytest.mark.usefixtures("reserved_pages")
def test_reserved_huge_pages_are_the_regions_from_its_making() -> None:
    region = Region.create_memfd(uuid4(), REGION_BYTES, 64 * MIB, Placement("reserved"))
    with mmap.mmap(region.fd, REGION_BYTES) as mapping:
        assert mapping[:8] == SUPERBLOCK_MAGIC.to_bytes(8, "little")
        assert re.search(r"KernelPageSize: +2048 kB", smaps_of(f"kvgpu-{region.uuid}"))
        block = region.allocate_block()
        assert block is not None
        mapping[block] = 1
        asyncio.run(free(region, block))
        assert mapping[block] == 0
    with pytest.raises(RegionError, match=f"{N_PAGES} huge pages of 2 MiB are missing") as raised:
        Region.create_memfd(uuid4(), REGION_BYTES, 64 * MIB, Placement("reserved"))
    wanted = int(NR_HUGE_PAGES.read_text()) + N_PAGES
    assert raised.value.hint == f"sysctl vm.nr_hugepages={wanted}"
    fd = os.dup(region.fd)
    Region.adopt_memfd(fd, region.uuid, REGION_BYTES, 64 * MIB).close()
    region.close()
    wait_for_closing(10)
    Region.create_memfd(uuid4(), REGION_BYTES, 64 * MIB, Placement("reserved")).close()
    wait_for_closing(10)


def test_reserved_huge_pages_are_not_to_be_had_in_shm(uuid: UUID) -> None:
    with pytest.raises(RegionError, match="ivshmem-plain") as raised:
        Region.create_named(uuid, REGION_BYTES, MIB, ME, Placement("reserved"))
    assert 'huge_pages = "transparent"' in raised.value.hint
    assert not region_path(uuid).exists()


@pytest.mark.parametrize("kind", ["named", "memfd"])
def test_node_holds_for_whoever_maps_the_region(uuid: UUID, kind: str) -> None:
    where = Placement(nodes=frozenset({0}))
    region = (
        Region.create_named(uuid, REGION_BYTES, MIB, ME, where)
        if kind == "named"
        else Region.create_memfd(uuid, REGION_BYTES, MIB, where)
    )
    with mmap.mmap(region.fd, REGION_BYTES) as mapping:
        mapping[64 * MIB] = 1
        lines = Path("/proc/self/numa_maps").read_text().splitlines()
    (policy,) = [line.split()[1] for line in lines if str(uuid) in line]
    region.close()
    assert policy.startswith("prefer")
    print(f"figure: numa, {kind}: policy of another mapping of the region: {policy}")


def test_node_that_is_not_there_is_refused_and_leaves_no_file(uuid: UUID) -> None:
    with pytest.raises(RegionError, match="NUMA node 900") as raised:
        Region.create_named(uuid, REGION_BYTES, MIB, ME, Placement(nodes=frozenset({900})))
    assert "this machine has the nodes 0" in raised.value.hint
    assert not region_path(uuid).exists()


def test_nodes_near_the_gpus(tmp_path: Path) -> None:
    for bus_id, node in (("0000:0a:00.0", 1), ("0000:0b:00.0", 1), ("0001:00:00.0", -1)):
        (tmp_path / bus_id).mkdir()
        (tmp_path / bus_id / "numa_node").write_text(f"{node}\n")
    assert nodes_of(["0000:0A:00.0", "0000:0B:00.0"], tmp_path) == {1}
    assert nodes_of(["0001:00:00.0", "0000:ff:00.0"], tmp_path) == set()  # one node; no PCI device


def test_configuration_says_where_regions_go(tmp_path: Path) -> None:
    n_waits = 0

    def devices() -> list[dict[str, Any]]:
        return []

    async def wait() -> None:
        nonlocal n_waits
        n_waits += 1

    def placed(text: str) -> Placement:
        (tmp_path / "host.toml").write_text(text)
        config = load_config(tmp_path / "host.toml")
        return asyncio.run(Placer(config.huge_pages, config.numa, devices, wait).placement())

    assert placed("") == Placement()
    assert placed("numa = 3") == Placement(nodes=frozenset({3}))
    assert n_waits == 0
    assert placed('numa = "gpu"') == Placement()
    assert n_waits == 1
    assert placed('huge_pages = "reserved"') == Placement("reserved")
    for wrong in ('huge_pages = "2M"', "numa = -1", 'huge_pages = "reserved"\nnuma = "gpu"'):
        with pytest.raises(ConfigError, match=r"host.toml, line [12]: (huge_pages|numa): "):
            placed(wrong)
