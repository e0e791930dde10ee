# SPDX-License-Identifier: Apache-2.0
"""Domain XML, in and out: makes a VM's definition, reads kvgpu's part of one. Pure: no libvirt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from string import ascii_lowercase
from uuid import UUID

from lxml import etree

from kvgpu.host.errors import DomainError, KvgpuError
from kvgpu.host.ivshmem.allocator import ALIGN_BYTES
from kvgpu.host.ivshmem.region import check_region_size, region_bytes_for
from kvgpu.host.units import GIB, KIB, MIB, round_down_to_power_of_two
from kvgpu.host.xml_elements import (
    append,
    elements,
    find,
    insert_after,
    parse,
    parse_keeping_all,
    read_bytes,
    read_integer,
    read_uuid,
    remove,
    set_text,
    template,
    to_indented_text,
    to_text,
)

PORT_NAME = "org.kvgpu.0"
_MAX_SOCKET_PATH_BYTES = 107  # unix(7): sun_path has 108, one is for the NUL
_OUR_PARTS = {
    "metadata": "metadata/kvgpu:vm",
    "shmem": "devices/shmem[starts-with(@name, 'kvgpu-')]",
    "channel": f"devices/channel[target/@name='{PORT_NAME}']",
}


class Device(Enum):
    """How a VM shares memory with its host."""

    NONE = ""  # not at all: sessions are of the byte-stream form
    PLAIN = "ivshmem-plain"
    DOORBELL = "ivshmem-doorbell"


@dataclass(frozen=True, slots=True)
class Slices:
    """What a VM may use of the host's GPUs."""

    memory_bytes: int
    compute_percent: int
    pinned_bytes: int


@dataclass(frozen=True, slots=True)
class Disk:
    """A virtio disk."""

    path: str
    format: str = "qcow2"  # or raw


@dataclass(frozen=True, slots=True)
class Machine:
    """The ordinary part of a VM."""

    name: str
    uuid: UUID
    ram_bytes: int
    n_vcpus: int
    kvm: bool
    disks: tuple[Disk, ...] = ()  # the first one is booted, unless there is a kernel
    kernel: str = ""
    initrd: str = ""
    cmdline: str = ""
    serial_log: str = ""
    network: str = "none"  # none, user, the name of a libvirt network, or bridge:NAME
    mac: str = ""  # of the network's card; libvirt chooses one


@dataclass(frozen=True, slots=True)
class VmDefinition:
    """kvgpu's part of a domain, as kvgpud needs it."""

    uuid: UUID
    name: str
    slices: Slices
    region_bytes: int
    channel_path: str
    device: Device = Device.PLAIN
    server_path: str = ""  # of a doorbell device's server

    @property
    def has_shmem(self) -> bool:
        return self.device is not Device.NONE


@dataclass(frozen=True, slots=True)
class Parts:
    """kvgpu's elements of a domain, as XML; "" for one that it has not."""

    metadata: str  # without its namespace, which libvirt adds
    shmem: str
    channel: str

    @property
    def has_devices(self) -> bool:
        return bool(self.shmem or self.channel)

    @property
    def is_any(self) -> bool:
        return self.has_devices or bool(self.metadata)


def default_pinned_bytes(ram_bytes: int) -> int:
    """Return a quarter of the RAM, at least 1 GiB, rounded down to a power of two."""
    return round_down_to_power_of_two(max(GIB, ram_bytes // 4))


def make_domain(
    machine: Machine, slices: Slices, runtime_dir: str, device: Device = Device.PLAIN
) -> str:
    """Return a complete domain for `virsh define`."""
    domain = template("domain.xml")
    domain.set("type", "kvm" if machine.kvm else "qemu")
    set_text(domain, "name", machine.name)
    set_text(domain, "uuid", str(machine.uuid))
    set_text(domain, "memory", str(machine.ram_bytes // KIB))
    set_text(domain, "vcpu", str(machine.n_vcpus))
    find(domain, "cpu").set("mode", "host-passthrough" if machine.kvm else "maximum")
    os_element = find(domain, "os")
    for tag in ("kernel", "initrd", "cmdline"):
        value = getattr(machine, tag)
        if value:
            etree.SubElement(os_element, tag).text = value
    if not machine.kernel:
        etree.SubElement(os_element, "boot", dev="hd")
    devices = find(domain, "devices")
    if len(machine.disks) > len(ascii_lowercase):
        raise DomainError(
            f"more than {len(ascii_lowercase)} disks", hint="attach the others by virsh"
        )
    for disk, letter in zip(machine.disks, ascii_lowercase, strict=False):
        devices.append(_disk(disk, f"vd{letter}"))
    if machine.network != "none":
        devices.append(_interface(machine.network, machine.mac))
    devices.append(_serial(machine.serial_log))
    _add_kvgpu(domain, machine.uuid, slices, runtime_dir, device)
    return to_indented_text(domain)


def extend_domain(
    domain_xml: str, slices: Slices, runtime_dir: str, device: Device = Device.PLAIN
) -> str:
    """Return an existing domain with kvgpu's parts added, or replaced if it has some."""
    domain = parse_keeping_all(domain_xml)
    uuid = read_uuid(domain)
    _remove_kvgpu(domain)
    _add_kvgpu(domain, uuid, slices, runtime_dir, device)
    return to_text(domain)


def strip_domain(domain_xml: str) -> str:
    """Return a domain without kvgpu's parts; DomainError if it has none.

    The virtio-serial controller stays that libvirt adds for the channel: ports that were added
    since may use it, and a domain that has never been kvgpu's may have one.
    """
    domain = parse_keeping_all(domain_xml)
    if not _remove_kvgpu(domain):
        raise DomainError("the domain has no slices", hint="see `kvgpu vm list --all`")
    metadata = domain.find("metadata")
    if metadata is not None and len(metadata) == 0 and not (metadata.text or "").strip():
        remove(metadata)
    return to_text(domain)


def normal_form(domain_xml: str) -> str:
    """Return the XML with quotes as this module writes them, and all else as it is."""
    return to_text(parse_keeping_all(domain_xml))


def parts(domain_xml: str) -> Parts:
    """Return what of a domain is kvgpu's."""
    domain = parse(domain_xml)
    found = {name: elements(domain, path)[:1] for name, path in _OUR_PARTS.items()}
    for element in found["metadata"]:
        for each in element.iter():
            each.tag = etree.QName(each).localname
        etree.cleanup_namespaces(element)
    return Parts(
        **{name: to_indented_text(each[0]) if each else "" for name, each in found.items()}
    )


def machine_type(domain_xml: str) -> str:
    """Return what kind of machine a domain is, such as pc-q35-7.2."""
    return find(parse(domain_xml), "os/type").get("machine", "")


def pci_hole_bytes(domain_xml: str) -> int | None:
    """Return the room a PC has for the memory of its 64-bit devices, None if it is not said."""
    path = "devices/controller[@type='pci'][@model='pci-root']/pcihole64"
    found = elements(parse(domain_xml), path)
    return read_bytes(found[0], default_unit="kib") if found else None


def has_serial_controller(domain_xml: str) -> bool:
    """Tell whether a domain has somewhere to plug a virtio-serial port in."""
    return bool(elements(parse(domain_xml), "devices/controller[@type='virtio-serial']"))


def ram_bytes(domain_xml: str) -> int:
    """Return the memory of a domain."""
    element = find(parse(domain_xml), "memory")
    return read_bytes(element, default_unit="kib")


def read_definition(domain_xml: str) -> VmDefinition | None:
    """Return kvgpu's part of a domain, None if it has none.

    Raises DomainError, which names the domain, if metadata, <shmem> and <channel> do not fit
    together.
    """
    domain = parse(domain_xml)
    found = elements(domain, "metadata/kvgpu:vm")
    if not found:
        return None
    name = domain.findtext("name") or "a domain without a name"
    try:
        return _read_definition(domain, name, found[0])
    except KvgpuError as error:
        raise DomainError(f"{name}: {error.message}", hint=error.hint) from error


def _read_definition(domain: etree._Element, name: str, vm: etree._Element) -> VmDefinition:
    uuid = read_uuid(domain)
    sources = elements(domain, f"devices/channel[target/@name='{PORT_NAME}']/source")
    shmems = elements(domain, "devices/shmem[starts-with(@name, 'kvgpu-')]")
    if (
        len(shmems) > 1
        or len(sources) != 1
        or any(shmem.get("name") != f"kvgpu-{uuid}" for shmem in shmems)
    ):
        raise DomainError(
            f"the domain has kvgpu metadata, but not one <shmem name='kvgpu-{uuid}'> (or none) "
            f"and one <channel> with {PORT_NAME}",
            hint=f"`kvgpu vm attach {name} --memory ...` makes them anew, so does vm xml --from",
        )
    slices = Slices(
        memory_bytes=read_bytes(find(vm, "kvgpu:memory")),
        compute_percent=read_integer(find(vm, "kvgpu:compute")),
        pinned_bytes=read_bytes(find(vm, "kvgpu:pinned")),
    )
    device = _device(shmems[0]) if shmems else Device.NONE
    server = ""
    if device is Device.DOORBELL:
        server = _socket_path(find(shmems[0], "server").get("path", ""), "<shmem>")
    return VmDefinition(
        *(uuid, name, slices),
        _region_bytes(shmems[0] if device is Device.PLAIN else None, slices.pinned_bytes),
        _socket_path(sources[0].get("path", ""), f"<channel> of {PORT_NAME}"),
        *(device, server),
    )


def _device(shmem: etree._Element) -> Device:
    model = find(shmem, "model").get("type", "")
    try:
        return Device(model)
    except ValueError as error:
        raise DomainError(
            f"<shmem>: the model {model!r} is not served",
            hint="make the XML with `kvgpu vm xml --from`",
        ) from error


def _region_bytes(shmem: etree._Element | None, pinned_bytes: int) -> int:
    """Return what the <shmem> says, or what it would say where it has no size."""
    needed_bytes = region_bytes_for(pinned_bytes)
    region_bytes = needed_bytes if shmem is None else read_bytes(find(shmem, "size"))
    check_region_size(region_bytes)
    if region_bytes < needed_bytes:
        raise DomainError(
            f"<shmem> has {region_bytes // MIB} MiB, pinned memory of "
            f"{pinned_bytes // MIB} MiB needs {needed_bytes // MIB} MiB",
            hint="make the XML with `kvgpu vm xml --from`",
        )
    return region_bytes


def _socket_path(path: str, where: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise DomainError(
            f"the {where} has no path", hint="make its XML with `kvgpu vm xml --from`"
        )
    if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise DomainError(
            f"the {where} has a path longer than {_MAX_SOCKET_PATH_BYTES} bytes: {path}",
            hint="choose a shorter --runtime-dir",
        )
    return path


def channel_path(runtime_dir: str, uuid: UUID) -> str:
    return f"{runtime_dir}/vm/{uuid}.sock"


def server_path(runtime_dir: str, uuid: UUID) -> str:
    return f"{runtime_dir}/ivshmem/{uuid}.sock"


def _add_kvgpu(
    domain: etree._Element, uuid: UUID, slices: Slices, runtime_dir: str, device: Device
) -> None:
    _check_slices(slices)
    vm = template("metadata.xml")
    set_text(vm, "kvgpu:memory", str(slices.memory_bytes // MIB))
    set_text(vm, "kvgpu:compute", str(slices.compute_percent))
    set_text(vm, "kvgpu:pinned", str(slices.pinned_bytes // MIB))
    metadata = domain.find("metadata")
    if metadata is None:
        metadata = etree.Element("metadata")
        insert_after(find(domain, "uuid"), metadata)
    append(metadata, vm)
    channel = template("channel.xml")
    find(channel, "source").set("path", channel_path(runtime_dir, uuid))
    devices = find(domain, "devices")
    append(devices, channel)
    if device is Device.NONE:
        return
    shmem = template("doorbell.xml" if device is Device.DOORBELL else "shmem.xml")
    shmem.set("name", f"kvgpu-{uuid}")
    if device is Device.DOORBELL:
        find(shmem, "server").set("path", server_path(runtime_dir, uuid))
    else:
        set_text(shmem, "size", str(region_bytes_for(slices.pinned_bytes) // MIB))
    append(devices, shmem)


def _remove_kvgpu(domain: etree._Element) -> bool:
    """Tell whether there was something to remove."""
    found = [element for path in _OUR_PARTS.values() for element in elements(domain, path)]
    for element in found:
        remove(element)
    return bool(found)


def _check_slices(slices: Slices) -> None:
    if not 1 <= slices.compute_percent <= 100:
        raise DomainError(
            f"compute {slices.compute_percent} is not a percentage from 1 to 100",
            hint="for example --compute 25",
        )
    if slices.memory_bytes < MIB:
        raise DomainError("GPU memory must be at least 1 MiB", hint="for example --memory 8GiB")
    if slices.pinned_bytes <= 0 or slices.pinned_bytes % ALIGN_BYTES:
        raise DomainError(
            f"pinned memory of {slices.pinned_bytes} B is not a multiple of 2 MiB",
            hint="for example --pinned 1GiB",
        )


def _disk(disk: Disk, name: str) -> etree._Element:
    element = template("disk.xml")
    find(element, "driver").set("type", disk.format)
    find(element, "source").set("file", disk.path)
    find(element, "target").set("dev", name)
    return element


def _interface(network: str, mac: str) -> etree._Element:
    interface = template("interface.xml")
    kind, colon, name = network.partition(":")
    if network != "user" and not colon:
        kind, name = "network", network
    interface.set("type", kind)
    if name:
        interface.insert(0, etree.Element("source", {kind: name}))
    if mac:
        interface.insert(0, etree.Element("mac", address=mac))
    return interface


def _serial(log: str) -> etree._Element:
    serial = template("serial.xml")
    if log:
        serial.insert(0, etree.Element("log", file=log, append="off"))
    return serial
