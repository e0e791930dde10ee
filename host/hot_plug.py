# SPDX-License-Identifier: Apache-2.0
"""Plugs kvgpu's devices into a domain that runs, and pulls them.

libvirt runs no hook for that, so kvgpud is told here what the hook says of a start and an end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from kvgpu.host import domain_xml
from kvgpu.host.client import Ask, end_session
from kvgpu.host.domain_xml import Parts
from kvgpu.host.errors import DomainError, KvgpuError
from kvgpu.host.ivshmem.region import pinned_bytes_in
from kvgpu.host.libvirt_domains import Libvirt
from kvgpu.host.messages import HookRequest, SessionListRequest, VmListRequest
from kvgpu.host.units import GIB, format_size, round_down_to_power_of_two

_SERIAL_CONTROLLER = "<controller type='virtio-serial'/>"
_HOLE_BYTES = 2 * GIB  # of an i440fx, unless <pcihole64> says otherwise
_READY_S = 15.0  # a guest has seen the device, its agent has said HELLO
_PULL_S = 30.0  # a guest has let go of a device

Change = Callable[[str], str]


class HotPlug:
    """One running domain; `ask` brings a request to kvgpud."""

    def __init__(self, libvirt: Libvirt, name: str, ask: Ask) -> None:
        self._libvirt = libvirt
        self._ask = ask
        domain = libvirt.domain(name)
        self.name = domain.name
        self.uuid = domain.uuid
        self.kept_xml = domain.xml
        if not domain.is_running:
            raise DomainError(f"{self.name} does not run", hint="leave --live out")

    def attach(self, change: Change, *, dry_run: bool = False) -> str:
        """Plug in what `change` adds to the domain's XML; change its persistent definition, too.

        Returns this definition. `dry_run`: only return what it would be.
        Raises KvgpuError with everything as it was if the domain cannot take it.
        """
        old = self._libvirt.live_xml(self.name)
        if domain_xml.parts(old).has_devices:
            raise DomainError(
                f"{self.name} has kvgpu's devices already, and they cannot be resized",
                hint=f"kvgpu vm detach {self.name} --live, then attach it anew",
            )
        new = change(old)
        definition = domain_xml.read_definition(new)
        wanted = domain_xml.parts(new)
        if definition and wanted.shmem:
            check_machine(self.name, domain_xml.machine_type(old))
            check_room(self.name, definition.region_bytes, domain_xml.pci_hole_bytes(old))
        after = self._libvirt.edit(self.name, change, dry_run).xml
        if dry_run:
            return after
        try:
            self._tell("prepare", new)
            if not domain_xml.has_serial_controller(old):
                self._libvirt.plug(self.name, _SERIAL_CONTROLLER)
            self._plug(wanted)
        except KvgpuError:
            self._undo(new)
            raise
        self._tell("started", new)
        return after

    def wait_until_ready(self) -> bool:
        """Return whether the guest's agent has found the devices, as it does within seconds."""
        return _within(_READY_S, lambda: self._state() == "ready")

    def detach(self, *, force: bool) -> None:
        """Pull kvgpu's devices, and take them out of the persistent definition.

        Raises DomainError while programs have sessions, unless `force` ends these; all is as it was
        then, and where libvirt or kvgpud refuses.
        """
        old = self._libvirt.live_xml(self.name)
        if not domain_xml.parts(old).is_any:
            raise DomainError(f"{self.name} runs without slices", hint="leave --live out")
        sessions = self._sessions()
        if sessions and not force:
            programs = ", ".join(f"{info['comm']} (pid {info['pid']})" for info in sessions)
            raise DomainError(
                f"{self.name} uses its slices: {programs}",
                hint="end these programs in the VM first, or --force ends their sessions",
            )
        # A domain without slices means nothing to kvgpud: it only says whether we may tell it.
        self._tell("reconnect", domain_xml.strip_domain(old))
        if domain_xml.parts(self.kept_xml).is_any:
            self._libvirt.edit(self.name, domain_xml.strip_domain)
        try:
            for info in sessions:
                end_session(self._ask, info["session"])
        except KvgpuError:
            self._libvirt.edit(self.name, lambda _: self.kept_xml)
            raise
        try:
            self._pull(domain_xml.parts(old))
        finally:
            self._tell("release", old)

    def _plug(self, wanted: Parts) -> None:
        # The channel last: an agent that found it alone would serve without shared memory.
        self._libvirt.set_live_metadata(self.name, wanted.metadata)
        for device in (wanted.shmem, wanted.channel):
            if device:
                self._libvirt.plug(self.name, device)

    def _pull(self, parts: Parts) -> None:
        if parts.metadata:
            self._libvirt.set_live_metadata(self.name, None)
        for device in (parts.channel, parts.shmem):
            if device:
                self._libvirt.unplug(self.name, device)
        if not _within(_PULL_S, lambda: not self._live_parts().has_devices):
            raise DomainError(
                f"{self.name} has not let go of the device within {_PULL_S:g} s",
                hint="it is served no more; shut it off to have the device gone",
            )

    def _undo(self, new: str) -> None:
        with contextlib.suppress(KvgpuError):
            self._pull(self._live_parts())
        with contextlib.suppress(KvgpuError):
            self._tell("release", new)
        self._libvirt.edit(self.name, lambda _: self.kept_xml)

    def _sessions(self) -> list[dict[str, Any]]:
        # By UUID: programs of the host are listed under a name that a VM may have, too.
        sessions = self._ask(SessionListRequest())["sessions"]
        return [info for info in sessions if info["region"] == self.uuid]

    def _live_parts(self) -> Parts:
        return domain_xml.parts(self._libvirt.live_xml(self.name))

    def _state(self) -> str:
        vms = self._ask(VmListRequest())["vms"]
        return next((str(vm["state"]) for vm in vms if vm["uuid"] == self.uuid), "")

    def _tell(self, operation: str, xml: str) -> None:
        self._ask(HookRequest(self.name, operation, xml))


def check_machine(name: str, machine: str) -> None:
    """Raise DomainError if a domain of this machine type cannot take the shmem while it runs."""
    if machine == "pc" or "i440fx" in machine:
        return
    raise DomainError(
        f"{name} has the machine type {machine}: the memory of a device that is plugged into it "
        "while it runs gets no address",
        hint=f"kvgpu vm attach {name} without --live, then shut it off and start it; "
        "or --no-shmem --live, which is slow",
    )


def check_room(name: str, region_bytes: int, hole_bytes: int | None) -> None:
    """Raise DomainError if a running guest may find no address for a region.

    The hole is where QEMU lets a PC have the memory of 64-bit devices; None: as large as it is if
    the domain does not say. It begins at a multiple of 1 GiB, the region at one of its own size.
    """
    limit_bytes = round_down_to_power_of_two(((hole_bytes or _HOLE_BYTES) + GIB) // 2)
    if region_bytes <= limit_bytes:
        return
    raise DomainError(
        f"{name}: a region of {format_size(region_bytes)} may find no address while the VM runs",
        hint=f"--pinned {format_size(pinned_bytes_in(limit_bytes)).replace(' ', '')} at most, "
        f"or attach it without --live, then shut it off and start it",
    )


def default_pinned_bytes(ram_bytes: int) -> int:
    """Return what is pinned in a VM that runs, where nothing else was asked for."""
    limit_bytes = round_down_to_power_of_two((_HOLE_BYTES + GIB) // 2)
    return min(domain_xml.default_pinned_bytes(ram_bytes), pinned_bytes_in(limit_bytes))


def _within(limit_s: float, is_true: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)
    return True
