# SPDX-License-Identifier: Apache-2.0
"""Domain XML, in and out: makes a VM's definition, reads kvgpu's part of one. Pure: no libvirt."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from uuid import UUID

from lxml import etree

from kvgpu.host.errors import DomainError
from kvgpu.host.ivshmem.allocator import ALIGN_BYTES
from kvgpu.host.ivshmem.region import check_region_size, region_bytes_for
from kvgpu.host.units import GIB, KIB, MIB, round_down_to_power_of_two

NAMESPACE = "https://kvgpu.org/xmlns/vm/1"
PORT_NAME = "org.kvgpu.0"
_MAX_SOCKET_PATH_BYTES = 107  # unix(7): sun_path has 108, one is for the NUL
_NS = {"kvgpu": NAMESPACE}
# libvirt's XML is trusted as far as its author is root; entities are never needed all the same.
_PARSER = etree.XMLParser(remove_blank_text=True, remove_comments=True, resolve_entities=False)


@dataclass(frozen=True, slots=True)
class Slices:
    """What a VM may use of the host's GPUs."""

    memory_bytes: int
    compute_percent: int
    pinned_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The ordinary part of a VM."""

    name: str
    uuid: UUID
    ram_bytes: int
    n_vcpus: int
    kvm: bool
    disk: str = ""
    disk_format: str = "qcow2"
    kernel: str = ""
    initrd: str = ""
    cmdline: str = ""
    serial_log: str = ""
    network: str = "none"  # none, user, or the name of a libvirt network


@dataclass(frozen=True, slots=True)
class VmDefinition:
    """kvgpu's part of a domain, as kvgpud needs it."""

    uuid: UUID
    name: str
    slices: Slices
    region_bytes: int
    channel_path: str
    has_shmem: bool = True  # False: no device, sessions are of the byte-stream form


def default_pinned_bytes(ram_bytes: int) -> int:
    """Return a quarter of the RAM, at least 1 GiB, rounded down to a power of two."""
    return round_down_to_power_of_two(max(GIB, ram_bytes // 4))


def make_domain(machine: Machine, slices: Slices, runtime_dir: str, shmem: bool = True) -> str:
    """Return a complete domain for `virsh define`; without `shmem` it has the channel alone."""
    domain = _template("domain.xml")
    domain.set("type", "kvm" if machine.kvm else "qemu")
    _set(domain, "name", machine.name)
    _set(domain, "uuid", str(machine.uuid))
    _set(domain, "memory", str(machine.ram_bytes // KIB))
    _set(domain, "vcpu", str(machine.n_vcpus))
    _find(domain, "cpu").set("mode", "host-passthrough" if machine.kvm else "maximum")
    os_element = _find(domain, "os")
    for tag in ("kernel", "initrd", "cmdline"):
        value = getattr(machine, tag)
        if value:
            etree.SubElement(os_element, tag).text = value
    if not machine.kernel:
        etree.SubElement(os_element, "boot", dev="hd")
    devices = _find(domain, "devices")
    if machine.disk:
        devices.append(_disk(machine))
    if machine.network != "none":
        devices.append(_interface(machine.network))
    devices.append(_serial(machine.serial_log))
    _add_kvgpu(domain, machine.uuid, slices, runtime_dir, shmem)
    return _text(domain)


def extend_domain(domain_xml: str, slices: Slices, runtime_dir: str, shmem: bool = True) -> str:
    """Return an existing domain with kvgpu's parts added, or replaced if it has some."""
    domain = _parse(domain_xml)
    uuid = _uuid(domain)
    for path in (
        "metadata/kvgpu:vm",
        "devices/shmem[starts-with(@name, 'kvgpu-')]",
        f"devices/channel[target/@name='{PORT_NAME}']",
    ):
        for old in _elements(domain, path):
            parent = old.getparent()
            assert parent is not None
            parent.remove(old)
    _add_kvgpu(domain, uuid, slices, runtime_dir, shmem)
    return _text(domain)


def read_definition(domain_xml: str) -> VmDefinition | None:
    """Return kvgpu's part of a domain, None if it has none.

    Raises DomainError if metadata, <shmem> and <channel> do not fit together.
    """
    domain = _parse(domain_xml)
    found = _elements(domain, "metadata/kvgpu:vm")
    if not found:
        return None
    uuid = _uuid(domain)
    sizes = _elements(domain, f"devices/shmem[@name='kvgpu-{uuid}']/size")
    sources = _elements(domain, f"devices/channel[target/@name='{PORT_NAME}']/source")
    shmems = _elements(domain, "devices/shmem[starts-with(@name, 'kvgpu-')]")
    if len(shmems) > 1 or len(sizes) != len(shmems) or len(sources) != 1:
        raise DomainError(
            f"the domain has kvgpu metadata, but not one <shmem name='kvgpu-{uuid}'> (or none) "
            f"and one <channel> with {PORT_NAME}",
            hint="make its XML with `kvgpu vm xml --from`",
        )
    slices = Slices(
        memory_bytes=_bytes(_find(found[0], "kvgpu:memory")),
        compute_percent=_integer(_find(found[0], "kvgpu:compute")),
        pinned_bytes=_bytes(_find(found[0], "kvgpu:pinned")),
    )
    region_bytes = _bytes(sizes[0]) if sizes else region_bytes_for(slices.pinned_bytes)
    check_region_size(region_bytes)
    if region_bytes < region_bytes_for(slices.pinned_bytes):
        raise DomainError(
            f"<shmem> has {region_bytes // MIB} MiB, pinned memory of "
            f"{slices.pinned_bytes // MIB} MiB needs "
            f"{region_bytes_for(slices.pinned_bytes) // MIB} MiB",
            hint="make the XML with `kvgpu vm xml --from`",
        )
    path = sources[0].get("path", "")
    if not PurePosixPath(path).is_absolute():
        raise DomainError(f"the <channel> of {PORT_NAME} has no path")
    if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise DomainError(
            f"the <channel> path {path} is longer than {_MAX_SOCKET_PATH_BYTES} bytes",
            hint="choose a shorter --runtime-dir",
        )
    name = _find(domain, "name").text or ""
    return VmDefinition(uuid, name, slices, region_bytes, path, has_shmem=bool(sizes))


def channel_path(runtime_dir: str, uuid: UUID) -> str:
    return f"{runtime_dir}/vm/{uuid}.sock"


def _add_kvgpu(
    domain: etree._Element, uuid: UUID, slices: Slices, runtime_dir: str, has_shmem: bool
) -> None:
    _check_slices(slices)
    vm = _template("metadata.xml")
    _set(vm, "kvgpu:memory", str(slices.memory_bytes // MIB))
    _set(vm, "kvgpu:compute", str(slices.compute_percent))
    _set(vm, "kvgpu:pinned", str(slices.pinned_bytes // MIB))
    metadata = domain.find("metadata")
    if metadata is None:
        metadata = etree.Element("metadata")
        _find(domain, "uuid").addnext(metadata)
    metadata.append(vm)
    channel = _template("channel.xml")
    _find(channel, "source").set("path", channel_path(runtime_dir, uuid))
    devices = _find(domain, "devices")
    devices.append(channel)
    if has_shmem:
        shmem = _template("shmem.xml")
        shmem.set("name", f"kvgpu-{uuid}")
        _set(shmem, "size", str(region_bytes_for(slices.pinned_bytes) // MIB))
        devices.append(shmem)


def _check_slices(slices: Slices) -> None:
    if not 1 <= slices.compute_percent <= 100:
        raise DomainError(f"compute {slices.compute_percent} is not a percentage from 1 to 100")
    if slices.memory_bytes < MIB:
        raise DomainError("GPU memory must be at least 1 MiB")
    if slices.pinned_bytes <= 0 or slices.pinned_bytes % ALIGN_BYTES:
        raise DomainError(
            f"pinned memory of {slices.pinned_bytes} B is not a multiple of 2 MiB",
            hint="for example --pinned 1GiB",
        )


def _disk(machine: Machine) -> etree._Element:
    disk = _template("disk.xml")
    _find(disk, "driver").set("type", machine.disk_format)
    _find(disk, "source").set("file", machine.disk)
    return disk


def _interface(network: str) -> etree._Element:
    interface = _template("interface.xml")
    interface.set("type", "user" if network == "user" else "network")
    if network != "user":
        interface.insert(0, etree.Element("source", network=network))
    return interface


def _serial(log: str) -> etree._Element:
    serial = _template("serial.xml")
    if log:
        serial.insert(0, etree.Element("log", file=log, append="off"))
    return serial


_UNITS = {"b": 1, "bytes": 1, "kb": 1000, "k": KIB, "kib": KIB, "mb": 1000**2, "m": MIB}
_UNITS |= {"mib": MIB, "gb": 1000**3, "g": GIB, "gib": GIB}


def _bytes(element: etree._Element) -> int:
    """Return a size element in bytes; libvirt itself writes units other than those it was given."""
    unit = element.get("unit", "bytes").lower()
    if unit not in _UNITS:
        raise DomainError(f"<{etree.QName(element).localname}>: unknown unit {unit!r}")
    return _integer(element) * _UNITS[unit]


def _integer(element: etree._Element) -> int:
    text = (element.text or "").strip()
    if not text.isdecimal():
        raise DomainError(f"<{etree.QName(element).localname}>: {text!r} is not a number")
    return int(text)


def _uuid(domain: etree._Element) -> UUID:
    text = _find(domain, "uuid").text or ""
    try:
        return UUID(text)
    except ValueError as error:
        raise DomainError(f"<uuid>: {text!r} is not a UUID") from error


def _template(name: str) -> etree._Element:
    return _parse((resources.files("kvgpu.xml_templates") / name).read_text())


def _parse(text: str) -> etree._Element:
    try:
        return etree.fromstring(text.encode(), _PARSER)
    except etree.XMLSyntaxError as error:
        raise DomainError(f"not a domain XML: {error}") from error


def _elements(root: etree._Element, path: str) -> list[etree._Element]:
    found = root.xpath(path, namespaces=_NS)
    return [e for e in found if isinstance(e, etree._Element)] if isinstance(found, list) else []


def _find(root: etree._Element, path: str) -> etree._Element:
    found = root.find(path, namespaces=_NS)
    if found is None:
        raise DomainError(f"no <{path}> in <{root.tag!s}>", hint="is this a complete domain?")
    return found


def _set(root: etree._Element, path: str, text: str) -> None:
    _find(root, path).text = text


def _text(root: etree._Element) -> str:
    etree.indent(root, space="  ")
    return etree.tostring(root, encoding="unicode", pretty_print=True)
