# SPDX-License-Identifier: Apache-2.0
"""Could a new domain be defined and started on this host: `kvgpu vm xml --dry-run`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lxml import etree

from kvgpu.host import libvirt_domains
from kvgpu.host.check import Finding
from kvgpu.host.client import ApiClient
from kvgpu.host.domain_xml import Device, VmDefinition, read_definition
from kvgpu.host.errors import KvgpuError
from kvgpu.host.ivshmem.region import check_free_memory
from kvgpu.host.messages import HostStatusRequest
from kvgpu.host.units import format_size

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")  # of libvirt0


def check_domain(domain_xml: str, runtime_dir: Path, uri: str) -> Iterator[Finding]:
    """Yield what was found, part by part; nothing is changed. Raises DomainError as libvirt's
    hook would refuse the domain."""
    domain = etree.fromstring(domain_xml.encode())
    definition = read_definition(domain_xml)
    assert definition is not None  # it is kvgpu's own
    yield _check_schema(domain, SCHEMA)
    yield from _check_files(domain)
    yield from _check_libvirt(domain, definition, uri)
    yield _check_gpu_memory(definition, runtime_dir)
    yield _check_region(definition)


def _check_schema(domain: etree._Element, schema: Path) -> Finding:
    if not schema.exists():
        return Finding("XML", "warning", f"not looked at: no {schema}", "apt install libvirt0")
    validator = etree.RelaxNG(file=str(schema))
    if validator.validate(domain):
        return Finding("XML", "ok", "as libvirt's schema wants it")
    return Finding("XML", "failed", str(validator.error_log.last_error), "tell kvgpu's authors")


def _check_files(domain: etree._Element) -> Iterator[Finding]:
    sources = domain.findall("devices/disk/source")  # others are volumes, or on the network
    files = [source.get("file") for source in sources]
    files += [domain.findtext(f"os/{tag}") for tag in ("kernel", "initrd")]
    for path in filter(None, files):
        yield _check_file("file", path, os.path.isfile(path))
    for path in filter(None, (source.get("dev") for source in sources)):
        yield _check_file("device", path, os.path.exists(path))


def _check_file(what: str, path: str, is_there: bool) -> Finding:
    if is_there:
        return Finding(what, "ok", path)
    return Finding(what, "failed", f"{path} is not there", "make it, or name another")


def _check_libvirt(domain: etree._Element, definition: VmDefinition, uri: str) -> Iterator[Finding]:
    name, uuid = definition.name, str(definition.uuid)
    source = domain.find("devices/interface[@type='network']/source")
    network = source.get("network") if source is not None else None
    try:
        with libvirt_domains.connect(uri) as libvirt:
            is_taken = any(known.name == name and known.uuid != uuid for known in libvirt.domains())
            has_network = network is None or libvirt.has_network(network)
    except KvgpuError as error:
        yield Finding("libvirt", "warning", f"not asked: {error.message}", error.hint)
        return
    if is_taken:
        yield Finding("name", "failed", f"{name} is taken", f"kvgpu vm attach {name}, or another")
    else:
        yield Finding("name", "ok", f"{name} is free")
    if network is not None and not has_network:
        to_do = f"sudo virsh net-start {network}, or another --network"
        yield Finding("network", "failed", f"no network {network} runs", to_do)
    elif network is not None:
        yield Finding("network", "ok", network)


def _check_gpu_memory(definition: VmDefinition, runtime_dir: Path) -> Finding:
    wanted_bytes = definition.slices.memory_bytes
    try:
        with ApiClient(runtime_dir) as api:
            devices = api.ask(HostStatusRequest())["inventory"].get("devices", [])
    except KvgpuError as error:
        return Finding("GPU memory", "warning", f"not asked: {error.message}", error.hint)
    largest_bytes = max((device["total_bytes"] for device in devices), default=0)
    detail = f"{format_size(wanted_bytes)}, the largest GPU has {format_size(largest_bytes)}"
    if wanted_bytes > largest_bytes:
        return Finding("GPU memory", "failed", detail, "a smaller --memory")
    return Finding("GPU memory", "ok", f"{detail}; not enforced yet")


def _check_region(definition: VmDefinition) -> Finding:
    is_named = definition.device is Device.PLAIN  # the others' regions are no files
    try:
        check_free_memory(definition.slices.pinned_bytes, is_named=is_named)
    except KvgpuError as error:
        # One that QEMU does not map keeps no VM from starting: its programs get less.
        state = "warning" if definition.device is Device.NONE else "failed"
        return Finding("region", state, error.message, error.hint)
    return Finding("region", "ok", f"{format_size(definition.region_bytes)}, there is room")
