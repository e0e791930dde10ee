# SPDX-License-Identifier: Apache-2.0
"""Domains as libvirt keeps them. The only place of the command line that speaks to libvirt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvgpu.host.errors import ConfigError, DomainError

if TYPE_CHECKING:
    import libvirt

SYSTEM = "qemu:///system"


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain's persistent definition, as it will be when it is started next."""

    name: str
    uuid: str
    xml: str
    is_running: bool


class Libvirt:
    """A connection. Its errors are DomainErrors with libvirt's own message."""

    def __init__(self, connection: libvirt.virConnect) -> None:
        self._connection = connection

    def domains(self) -> list[Domain]:
        """Return all domains that are kept."""
        with _errors("cannot list the domains"):
            return [_read(d) for d in self._connection.listAllDomains() if d.isPersistent()]

    def domain(self, name: str) -> Domain:
        """Return the domain of this name or UUID."""
        with _errors(name, hint="see `sudo virsh list --all`"):
            return _read(self._find(name))

    def has_network(self, name: str) -> bool:
        """Tell whether a network of this name is active."""
        with _errors("cannot list the networks"):
            return name in self._connection.listNetworks()

    def edit(self, name: str, change: Callable[[str], str], dry_run: bool = False) -> Domain:
        """Define the domain anew as `change` makes it of its XML; return it as it is then.

        A running domain goes on as it is. `dry_run`: only return what would be defined.
        """
        with _errors(name, hint="see `sudo virsh list --all`"):
            found = self._find(name)
            if not found.isPersistent():
                raise DomainError(
                    f"{name}: a transient domain has no definition that could be changed",
                    hint="define it first: sudo virsh dumpxml --inactive, sudo virsh define",
                )
            old = _read(found)
            new = replace(old, xml=change(old.xml))
            return new if dry_run else self._define(new)

    def live_xml(self, name: str) -> str:
        """Return a running domain as it is now."""
        import libvirt

        with _errors(name):
            xml: str = self._find(name).XMLDesc(libvirt.VIR_DOMAIN_XML_SECURE)
            return xml

    def plug(self, name: str, device_xml: str) -> None:
        """Plug a device into a running domain; its persistent definition stays."""
        import libvirt

        with _errors(f"{name}: libvirt cannot plug the device in"):
            self._find(name).attachDeviceFlags(device_xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def unplug(self, name: str, device_xml: str) -> None:
        """Ask a running domain to let go of a device, which takes the guest its time."""
        import libvirt

        with _errors(f"{name}: libvirt cannot pull the device"):
            self._find(name).detachDeviceFlags(device_xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def set_live_metadata(self, name: str, metadata_xml: str | None) -> None:
        """Set kvgpu's metadata of a running domain, or remove it."""
        import libvirt

        from kvgpu.host.xml_elements import NAMESPACE

        with _errors(name):
            self._find(name).setMetadata(
                *(libvirt.VIR_DOMAIN_METADATA_ELEMENT, metadata_xml, "kvgpu", NAMESPACE),
                libvirt.VIR_DOMAIN_AFFECT_LIVE,
            )

    def _define(self, domain: Domain) -> Domain:
        return _read(self._connection.defineXML(domain.xml))

    def _find(self, name: str) -> libvirt.virDomain:
        import libvirt

        try:
            return self._connection.lookupByUUIDString(name)
        except libvirt.libvirtError:
            return self._connection.lookupByName(name)


@contextlib.contextmanager
def connect(uri: str = SYSTEM) -> Iterator[Libvirt]:
    """Connect to libvirt; ConfigError without Python's module, DomainError without libvirtd."""
    try:
        import libvirt
    except ImportError as error:
        raise ConfigError(
            "Python's libvirt module is not there", hint="apt install python3-libvirt"
        ) from error
    libvirt.registerErrorHandler(lambda *_: None, None)  # else each error is printed, too
    with _errors(uri, hint="is libvirtd running, and may you use it?"):
        connection = libvirt.open(uri)
    try:
        yield Libvirt(connection)
    finally:
        connection.close()


def _read(domain: libvirt.virDomain) -> Domain:
    import libvirt

    flags = libvirt.VIR_DOMAIN_XML_SECURE  # with passwords: what is left out would be lost
    if domain.isPersistent():
        flags |= libvirt.VIR_DOMAIN_XML_INACTIVE
    return Domain(
        domain.name(), domain.UUIDString(), domain.XMLDesc(flags), bool(domain.isActive())
    )


@contextlib.contextmanager
def _errors(what: str, hint: str = "") -> Iterator[None]:
    import libvirt

    try:
        yield
    except libvirt.libvirtError as error:
        raise DomainError(f"{what}: {error.get_error_message()}", hint=hint) from error
