# SPDX-License-Identifier: Apache-2.0
"""Where a region's memory comes from: pages of which size, of which NUMA nodes.

Transparent huge pages are the kernel's to give, by a setting that is checked here. Reserved ones
are a region's from its making. A policy belongs to the file, whoever touches a page first.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvgpu.host.errors import RegionError
from kvgpu.host.paths import PCI_DEVICES
from kvgpu.host.units import MIB, format_size

SHM_DIR = Path("/dev/shm")
SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
MOUNTS = Path("/proc/self/mounts")
HUGE_PAGE_BYTES = 2 * MIB
_RESERVED = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
_NODES = Path("/sys/devices/system/node")
# With "advise" a page is huge only where each process that maps it has asked for it.
_GIVES_HUGE_PAGES = ("always", "within_size", "force")

_MFD_HUGE_2MB = 21 << 26  # linux/memfd.h; Python has MFD_HUGETLB only
_SYS_MBIND = 237  # x86-64
_MPOL_PREFERRED_MANY = 5  # other nodes where these are full: slower is better than not at all
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)

HugePages = Literal["any", "transparent", "reserved"]


@dataclass(frozen=True, slots=True)
class Placement:
    """What a region is to be made of; the default is what the kernel gives."""

    huge_pages: HugePages = "any"
    nodes: frozenset[int] = frozenset()  # empty: any


ANYWHERE = Placement()


class Placer:
    """Makes of the configuration what holds for this machine."""

    def __init__(
        self,
        huge_pages: HugePages,
        numa: str | int,
        devices_now: Callable[[], list[dict[str, Any]]],
        wait_for_devices: Callable[[], Awaitable[None]],
    ) -> None:
        self._huge_pages = huge_pages
        self._numa = numa
        self._devices_now = devices_now
        self._wait_for_devices = wait_for_devices
        self._said = False

    async def placement(self) -> Placement:
        """Return where regions go from now on. Waits for the inventory if it is near the GPUs."""
        if self._numa == "gpu":
            await self._wait_for_devices()
        return self.known_now()

    def known_now(self) -> Placement:
        """Return the same without waiting: where the inventory is not there yet, on any node."""
        return Placement(self._huge_pages, self._nodes())

    def _nodes(self) -> frozenset[int]:
        if self._numa == "any":
            return frozenset()
        if isinstance(self._numa, int):
            return frozenset({self._numa})
        devices = self._devices_now()
        nodes = nodes_of(device["pci_bus_id"] for device in devices)
        if devices and not self._said:
            self._said = True
            names = ", ".join(map(str, sorted(nodes)))
            _log.info("regions: %s", f"near the GPUs, on node {names}" if nodes else "any node")
        return nodes


def nodes_of(bus_ids: Iterable[str], devices: Path = PCI_DEVICES) -> frozenset[int]:
    """Return the NUMA nodes of PCI devices; those of machines with one node have none."""
    nodes = set()
    for bus_id in bus_ids:
        try:
            node = int((devices / bus_id.lower() / "numa_node").read_text())
        except (OSError, ValueError):
            continue  # no PCI device, as the software GPU is none
        if node >= 0:
            nodes.add(node)
    return frozenset(nodes)


def make_memfd(name: str, size_bytes: int, placement: Placement) -> int:
    """Return a memfd that can be sealed; RegionError if the configured pages are not to be had."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    if placement.huge_pages == "reserved":
        flags |= os.MFD_HUGETLB | _MFD_HUGE_2MB
    elif placement.huge_pages == "transparent":
        check_memfd_pages()
    fd = os.memfd_create(name, flags)
    try:
        os.ftruncate(fd, size_bytes)
        if placement.huge_pages == "reserved":
            _reserve(fd, size_bytes)
        place(fd, size_bytes, placement.nodes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def place(fd: int, size_bytes: int, nodes: frozenset[int]) -> None:
    """Make `nodes` preferred for the pages of a file in shared memory."""
    if not nodes:
        return
    n_words = max(nodes) // 64 + 1
    bits = sum(1 << node for node in nodes)
    mask = (ctypes.c_uint64 * n_words).from_buffer_copy(bits.to_bytes(8 * n_words, "little"))
    with mmap.mmap(fd, size_bytes) as mapping:
        first = ctypes.c_char.from_buffer(mapping)
        failed = _libc.syscall(
            *(_SYS_MBIND, ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_ulong(size_bytes)),
            *(_MPOL_PREFERRED_MANY, ctypes.byref(mask), ctypes.c_ulong(64 * n_words + 1), 0),
        )
        error = ctypes.get_errno()
        del first  # else the mapping cannot be closed
    if failed:
        names = ", ".join(map(str, sorted(nodes)))
        raise RegionError(
            f"cannot place memory on NUMA node {names}: {os.strerror(error)}",
            hint=f"`numa` in host.toml; this machine has the nodes {_online_nodes()}",
        )


def shm_huge_pages(mounts: Path = MOUNTS, shmem_enabled: Path = SHMEM_ENABLED) -> str:
    """Return what holds for huge pages in /dev/shm: never, advise, within_size, always, force."""
    overall = memfd_huge_pages(shmem_enabled)
    if overall in ("deny", "force"):
        return "never" if overall == "deny" else "force"
    lines = [line.split() for line in mounts.read_text().splitlines()]
    options = [fields[3].split(",") for fields in lines if fields[1] == str(SHM_DIR)]
    found = [o.partition("=")[2] for o in (options[-1] if options else ()) if o.startswith("huge=")]
    return found[0] if found else "never"


def memfd_huge_pages(shmem_enabled: Path = SHMEM_ENABLED) -> str:
    """Return what holds for huge pages in memory without a name."""
    try:
        return shmem_enabled.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "never"


def gives_huge_pages(setting: str) -> bool:
    return setting in _GIVES_HUGE_PAGES


SHM_TO_DO = f"mount -o remount,huge=within_size {SHM_DIR}, and the same in /etc/fstab"


def check_shm_pages(placement: Placement) -> None:
    """Raise RegionError if a file in /dev/shm cannot have the configured pages."""
    if placement.huge_pages == "reserved":
        raise RegionError(
            f"ivshmem-plain lies in {SHM_DIR}, which has no reserved huge pages",
            hint='`kvgpu vm attach --doorbell` can; or huge_pages = "transparent" in host.toml',
        )
    setting = shm_huge_pages()
    if placement.huge_pages == "transparent" and not gives_huge_pages(setting):
        raise RegionError(f"{SHM_DIR} gives no huge pages ({setting})", hint=SHM_TO_DO)


def check_memfd_pages() -> None:
    """Raise RegionError if memory without a name cannot have transparent huge pages."""
    setting = memfd_huge_pages()
    if not gives_huge_pages(setting):
        raise RegionError(
            f"shared memory gets no huge pages ({setting})",
            hint=f"echo within_size > {SHMEM_ENABLED}",
        )


def _reserve(fd: int, size_bytes: int) -> None:
    try:
        mmap.mmap(fd, size_bytes).close()  # the pages stay the file's
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        n_wanted = size_bytes // HUGE_PAGE_BYTES
        n_pages, n_free, n_promised = (
            int((_RESERVED / f"{name}_hugepages").read_text()) for name in ("nr", "free", "resv")
        )
        n_missing = n_wanted - (n_free - n_promised)
        raise RegionError(
            f"{n_missing} huge pages of 2 MiB are missing: the region of "
            f"{format_size(size_bytes)} takes {n_wanted}, {n_free - n_promised} are free",
            hint=f"sysctl vm.nr_hugepages={n_pages + n_missing}",
        ) from error


def _online_nodes() -> str:
    try:
        return (_NODES / "online").read_text().strip()
    except OSError:
        return "unknown"
