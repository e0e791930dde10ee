# SPDX-License-Identifier: Apache-2.0
"""Domain XML against golden files. KVGPU_REGENERATE=1 writes them anew; look at the difference."""

from __future__ import annotations

import os
from difflib import ndiff
from pathlib import Path
from uuid import UUID

import pytest

from kvgpu.host.domain_xml import (
    Device,
    Disk,
    Machine,
    Slices,
    default_pinned_bytes,
    extend_domain,
    make_domain,
    read_definition,
    strip_domain,
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
        disks=(Disk("/var/lib/vm/root.img", "raw"), Disk("/var/lib/vm/data.qcow2")),
        kernel="/boot/vmlinux",
        initrd="/boot/initrd",
        cmdline="root=/dev/vda console=ttyS0",
        serial_log="/var/log/direct.log",
        network="user",
    ),
    "network": Machine(
        *("served", ONE, 8 * GIB, 4),
        kvm=True,
        disks=(Disk("/srv/served.qcow2"),),
        network="default",
    ),
    "bridge": Machine(
        *("bridged", ONE, 8 * GIB, 4),
        kvm=True,
        disks=(Disk("/srv/bridged.qcow2"),),
        network="bridge:br0",
        mac="52:54:00:12:34:56",
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


NOTE = """<app:note xmlns:app="https://example.org/app"><!-- keep --><app:run><![CDATA[
      if a < b: go("x")]]></app:run>text,  <app:b>mixed</app:b>
        with more</app:note>"""
DISK = """<disk type="file"><source file="/a"/></disk>   <!-- the first -->"""
WHOLE = f"""<!-- made by hand -->
<domain type="kvm">
  <name>kept</name>
  <uuid>{ONE}</uuid>
  <metadata>
    {NOTE}
  </metadata>
  <memory unit="GiB">4</memory>

\t<!-- two disks, one day -->
  <devices>
    {DISK}
  </devices>
</domain>
"""
COMPACT = f"<domain><name>x</name><uuid>{ONE}</uuid><devices><tpm/></devices></domain>\n"


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        WHOLE.replace(f"    {NOTE}\n", "    <!-- a comment alone -->\n"),
        WHOLE.replace(f"  <metadata>\n    {NOTE}\n  </metadata>\n", ""),
        WHOLE.replace("  ", "\t"),
        WHOLE.replace(f"    {DISK}\n", ""),
        COMPACT,
        COMPACT.replace("<devices>", f"<metadata>{NOTE}</metadata><devices>"),
    ],
)
@pytest.mark.parametrize("device", Device)
def test_what_others_wrote_stays_as_they_wrote_it(text: str, device: Device) -> None:
    attached = extend_domain(text, SLICES, "/run/kvgpu", device)
    assert read_definition(attached)
    if "<tpm/>" not in text:  # each line is there still
        lines = ndiff(text.splitlines(), attached.splitlines())
        assert not [line for line in lines if line[0] == "-"]
    assert extend_domain(attached, SLICES, "/run/kvgpu", device) == attached
    assert strip_domain(attached) == text


def test_entities_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("none of yours")
    entity = f'<!DOCTYPE domain [<!ENTITY secret SYSTEM "file://{secret}">]>'
    text = entity + COMPACT.replace("<name>x", "<name>&secret;")
    assert "none of yours" not in extend_domain(text, SLICES, "/run/kvgpu")


@pytest.mark.parametrize("pinned_bytes", [64 * MIB, GIB, 3 * GIB])
def test_definition_read_back_is_what_was_written(pinned_bytes: int) -> None:
    slices = Slices(8 * GIB, 25, pinned_bytes)
    found = read_definition(make_domain(MACHINES["minimal"], slices, "/run/kvgpu"))
    assert found
    assert (found.uuid, found.name, found.slices) == (ONE, "small", slices)
    assert found.channel_path == f"/run/kvgpu/vm/{ONE}.sock"
    assert found.region_bytes > pinned_bytes


def test_vm_without_shared_memory_has_the_channel_alone() -> None:
    text = make_domain(MACHINES["minimal"], SLICES, "/run/kvgpu", Device.NONE)
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


def test_doorbell_device_is_as_in_the_golden_file_and_read_back() -> None:
    text = make_domain(MACHINES["minimal"], SLICES, "/run/kvgpu", Device.DOORBELL)
    compare("doorbell-out.xml", text)
    found = read_definition(text)
    usual = read_definition(make_domain(MACHINES["minimal"], SLICES, "/run/kvgpu"))
    assert found
    assert usual
    assert (found.device, usual.device) == (Device.DOORBELL, Device.PLAIN)
    assert found.server_path == f"/run/kvgpu/ivshmem/{ONE}.sock"
    assert found.region_bytes == usual.region_bytes
    again = extend_domain(text, SLICES, "/run/kvgpu", Device.DOORBELL)
    assert again == text
    assert extend_domain(text, SLICES, "/run/kvgpu") == make_domain(
        MACHINES["minimal"], SLICES, "/run/kvgpu"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ivshmem-doorbell", "ivshmem", "the model 'ivshmem' is not served"),
        ("/run/kvgpu/ivshmem/", "", "<shmem> has no path"),
        ("/run/kvgpu/ivshmem/", "/run/" + "x" * 100, "longer than 107 bytes"),
    ],
)
def test_inconsistent_doorbell_device_is_refused(old: str, new: str, message: str) -> None:
    text = make_domain(MACHINES["minimal"], SLICES, "/run/kvgpu", Device.DOORBELL)
    assert old in text
    with pytest.raises(DomainError, match=message):
        read_definition(text.replace(old, new))


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
