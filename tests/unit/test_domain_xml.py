# SPDX-License-Identifier: Apache-2.0
"""Domain XML against golden files. KVGPU_REGENERATE=1 writes them anew; look at the difference."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from kvgpu.host.domain_xml import (
    Machine,
    Slices,
    default_pinned_bytes,
    extend_domain,
    make_domain,
    read_definition,
)
from kvgpu.host.errors import DomainError, KvgpuError
from kvgpu.host.units import GIB, MIB

DATA = Path(__file__).parents[1] / "data/xml"
ONE = UUID("9a3f9f34-6a1e-4b7c-9a57-2f64c1f5a000")
SLICES = Slices(8 * GIB, 25, GIB)
MACHINES = {
    "minimal": Machine("small", ONE, 2 * GIB, 1, kvm=True),
    "kernel": Machine(
        *("direct", ONE, 4 * GIB, 2),
        kvm=False,
        disk="/var/lib/vm/root.img",
        disk_format="raw",
        kernel="/boot/vmlinux",
        initrd="/boot/initrd",
        cmdline="root=/dev/vda console=ttyS0",
        serial_log="/var/log/direct.log",
        network="user",
    ),
    "network": Machine(
        "served", ONE, 8 * GIB, 4, kvm=True, disk="/srv/served.qcow2", network="default"
    ),
}


def compare(name: str, text: str) -> None:
    path = DATA / name
    if os.environ.get("KVGPU_REGENERATE"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("name", MACHINES)
def test_new_domain_is_as_in_the_golden_file(name: str) -> None:
    compare(f"{name}-out.xml", make_domain(MACHINES[name], SLICES, "/run/kvgpu"))


def test_existing_domain_keeps_its_own_parts_and_gets_ours_once() -> None:
    text = extend_domain((DATA / "existing-in.xml").read_text(), SLICES, "/run/kvgpu")
    compare("existing-out.xml", text)
    assert extend_domain(text, SLICES, "/run/kvgpu") == text


@pytest.mark.parametrize("pinned_bytes", [64 * MIB, GIB, 3 * GIB])
def test_definition_read_back_is_what_was_written(pinned_bytes: int) -> None:
    slices = Slices(8 * GIB, 25, pinned_bytes)
    found = read_definition(make_domain(MACHINES["minimal"], slices, "/run/kvgpu"))
    assert found
    assert (found.uuid, found.name, found.slices) == (ONE, "small", slices)
    assert found.channel_path == f"/run/kvgpu/vm/{ONE}.sock"
    assert found.region_bytes > pinned_bytes


def test_vm_without_shared_memory_has_the_channel_alone() -> None:
    text = make_domain(MACHINES["minimal"], SLICES, "/run/kvgpu", shmem=False)
    assert "<shmem" not in text
    found, usual = (
        read_definition(xml)
        for xml in (text, make_domain(MACHINES["minimal"], SLICES, "/run/kvgpu"))
    )
    assert found
    assert usual
    assert not found.has_shmem
    assert usual.has_shmem
    assert found.region_bytes == usual.region_bytes
    assert found.channel_path == usual.channel_path


def test_sizes_in_the_units_libvirt_writes_are_understood() -> None:
    text = make_domain(MACHINES["minimal"], SLICES, "/run/kvgpu")
    rewritten = text.replace('<size unit="M">2048</size>', '<size unit="KiB">2097152</size>')
    assert rewritten != text
    assert read_definition(rewritten) == read_definition(text)


def test_domain_without_slices_is_none_of_ours() -> None:
    assert read_definition("<domain><name>x</name></domain>") is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('<size unit="M">2048</size>', '<size unit="M">1024</size>', "needs 2048 MiB"),
        ('<size unit="M">2048</size>', '<size unit="M">2000</size>', "power of two"),
        ('<size unit="M">2048</size>', '<size unit="X">2048</size>', "unknown unit"),
        ('name="org.kvgpu.0"', 'name="org.other.0"', "not one <shmem"),
        (f'name="kvgpu-{ONE}"', 'name="kvgpu-other"', "not one <shmem"),
        (f"<uuid>{ONE}</uuid>", "<uuid>none</uuid>", "not a UUID"),
        ("/run/kvgpu/vm/", "/run/" + "x" * 100, "longer than 107 bytes"),
        ("/run/kvgpu/vm/", "", "has no path"),
        ("</domain>", "", "not a domain XML"),
    ],
)
def test_inconsistent_domain_is_refused(old: str, new: str, message: str) -> None:
    text = make_domain(MACHINES["minimal"], SLICES, "/run/kvgpu")
    assert old in text
    with pytest.raises(KvgpuError, match=message):
        read_definition(text.replace(old, new))


@pytest.mark.parametrize(
    "slices", [Slices(GIB, 0, GIB), Slices(GIB, 101, GIB), Slices(0, 1, GIB), Slices(GIB, 1, MIB)]
)
def test_impossible_slices_are_refused(slices: Slices) -> None:
    with pytest.raises(DomainError):
        make_domain(MACHINES["minimal"], slices, "/run/kvgpu")


@pytest.mark.parametrize(
    ("ram_bytes", "pinned_bytes"),
    [(GIB, GIB), (4 * GIB, GIB), (8 * GIB, 2 * GIB), (24 * GIB, 4 * GIB), (64 * GIB, 16 * GIB)],
)
def test_default_pinned_memory_is_a_quarter_of_ram(ram_bytes: int, pinned_bytes: int) -> None:
    assert default_pinned_bytes(ram_bytes) == pinned_bytes
