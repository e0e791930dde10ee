# SPDX-License-Identifier: Apache-2.0
"""The VMs of this host: made known by the libvirt hook, kept over a restart of kvgpud."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from kvgpu.host.config import HostConfig, qemu_uid, region_owner
from kvgpu.host.domain_xml import Device, VmDefinition, read_definition
from kvgpu.host.driver_watch import DriverWatch
from kvgpu.host.errors import KvgpuError, RegionError
from kvgpu.host.ivshmem.doorbells import Doorbells
from kvgpu.host.ivshmem.placement import Placement, Placer
from kvgpu.host.ivshmem.range_freer import is_closing, wait_for_closing
from kvgpu.host.ivshmem.region import Region, check_free_memory, check_unused
from kvgpu.host.messages import VmInfo
from kvgpu.host.orphans import Orphan, Orphans
from kvgpu.host.session_store import write_whole
from kvgpu.host.sessions import SessionBroker
from kvgpu.host.vm_channel import VmChannel

_log = logging.getLogger(__name__)
_CLOSING_LIMIT_S = 0.8  # less than the hook waits


class Vm:
    """A VM that is starting or running."""

    def __init__(self, definition: VmDefinition, region: Region, channel: VmChannel) -> None:
        self.definition = definition
        self.region = region
        self.channel = channel

    def info(self) -> VmInfo:
        slices = self.definition.slices
        return VmInfo(
            uuid=str(self.definition.uuid),
            name=self.definition.name,
            state=self.channel.state,
            device=self.definition.device.value or "none",
            region_bytes=self.region.size_bytes,
            memory_bytes=slices.memory_bytes,
            compute_percent=slices.compute_percent,
            pinned_bytes=slices.pinned_bytes,
            n_sessions=len(self.channel.sessions),
            n_kicks=self.channel.n_kicks,
        )


class VmRegistry:
    """Does what the hook asks.

    RUNTIME_DIR/domains/UUID.xml, for the next kvgpud, is each VM's domain XML. RUNTIME_DIR/vm is
    QEMU's: nothing in it but the VMs' sockets is ever opened.
    """

    def __init__(
        self,
        runtime_dir: Path,
        config: HostConfig,
        broker: SessionBroker,
        drivers: DriverWatch,
        placer: Placer,
    ) -> None:
        self.vms: dict[UUID, Vm] = {}
        self._dir = runtime_dir / "vm"
        self._domains = runtime_dir / "domains"
        self._config = config
        self._broker = broker
        self._drivers = drivers
        self._placer = placer
        # One hook at a time: prepare and release of a VM may overlap. Not held while the driver is
        # waited for: the hook gives up soon, and a start that libvirt refuses is not tried again.
        self._lock = asyncio.Lock()
        self._refused: set[UUID] = set()  # starts of VMs that ran; libvirt has not cleaned up yet
        self._domains.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._dir.mkdir(exist_ok=True)
        self._let_qemu_in()

    async def handle(self, operation: str, domain_xml: str) -> None:
        """Act on one hook call; what concerns no VM of ours is ignored.

        Raises KvgpuError where libvirt should not start the VM.
        """
        if operation in ("stopped", "release"):
            await self._release(operation, domain_xml)
            return
        definition = read_definition(domain_xml)
        if definition is None:
            return
        async with self._lock:
            if operation == "prepare":
                await self._prepare(definition, domain_xml)
            elif operation in ("started", "reconnect"):
                known = self.vms.get(definition.uuid)
                if known and known.definition.has_shmem != definition.has_shmem:
                    await self._forget(definition.uuid)  # plugged in or pulled since
                if definition.uuid not in self.vms:
                    if Path(definition.channel_path).parent.resolve() != self._dir.resolve():
                        return  # another kvgpud's: its sessions use the region
                    await self._adopt(definition, domain_xml)
                self.vms[definition.uuid].channel.look_now()

    async def release(self, uuid: UUID) -> None:
        """End what a VM has, if it has anything."""
        async with self._lock:
            await self._forget(uuid)

    async def adopt_known(self, orphans: Orphans) -> None:
        """Take up the VMs that ran while kvgpud was away, and their sessions."""
        for path in self._domains.glob("*.xml"):
            try:
                domain_xml = path.read_text()
                definition = read_definition(domain_xml)
                if definition:
                    await self._adopt(definition, domain_xml, orphans)
            except (KvgpuError, OSError, ValueError) as error:  # ValueError: not UTF-8
                _log.warning("%s: not taken up: %s", path, error)
                path.unlink(missing_ok=True)

    async def close(self, *, end_sessions: bool) -> None:
        """Let go of all VMs; their regions stay for the next kvgpud, and so may their sessions."""
        vms = list(self.vms.values())
        self.vms.clear()
        channels = [vm.channel for vm in vms]
        await asyncio.gather(*(c.close() if end_sessions else c.leave() for c in channels))
        for vm in vms:
            vm.region.close_keeping_file()

    async def _prepare(self, definition: VmDefinition, domain_xml: str) -> None:
        self._refused.discard(definition.uuid)
        try:
            self._check_not_running(definition)
        except RegionError:
            self._refused.add(definition.uuid)
            raise
        if self._drivers.has_answered:  # else the VM's channel looks before it serves
            await self._check_isolation()
        await self._forget(definition.uuid)
        region = await self._make_region(definition, self._placer.known_now())
        self._add(definition, region, domain_xml)

    async def _release(self, operation: str, domain_xml: str) -> None:
        # Runs after a refused start, too, and with any XML: nothing here may fail the caller.
        try:
            definition = read_definition(domain_xml)
        except KvgpuError as error:
            _log.info("release of a domain that cannot be read: %s", error)
            return
        if definition is None:
            return
        async with self._lock:
            if not self._is_of_refused_start(operation, definition):
                await self._forget(definition.uuid)

    def _is_of_refused_start(self, operation: str, definition: VmDefinition) -> bool:
        # libvirt cleans up after each start that fails: it means that one, not the VM that runs.
        if definition.uuid not in self._refused:
            return False
        if operation == "release":  # the last one
            self._refused.discard(definition.uuid)
        try:
            self._check_not_running(definition)
        except RegionError:
            return True
        return False

    async def _make_region(self, definition: VmDefinition, placement: Placement) -> Region:
        was_closing = is_closing()
        try:
            return await self._try_to_make_region(definition, placement)
        except RegionError:
            if not was_closing:
                raise
            # The memory of a VM that has ended was still on its way back.
            await asyncio.to_thread(wait_for_closing, _CLOSING_LIMIT_S)
            return await self._try_to_make_region(definition, placement)

    async def _try_to_make_region(self, definition: VmDefinition, placement: Placement) -> Region:
        sizes = (definition.region_bytes, definition.slices.pinned_bytes)
        if definition.device is Device.PLAIN:
            owner = region_owner(self._config)
            return Region.create_named(definition.uuid, *sizes, owner, placement)
        if definition.device is Device.DOORBELL and placement.huge_pages != "reserved":
            check_free_memory(definition.slices.pinned_bytes, is_named=False)
        region = Region.create_memfd(definition.uuid, *sizes, placement)
        if definition.device is Device.DOORBELL:
            uid = qemu_uid(self._config) if os.geteuid() == 0 else None
            try:
                region.doorbells = await Doorbells.start(
                    *(Path(definition.server_path), region.fd, os.geteuid() if uid is None else uid)
                )
            except KvgpuError:
                region.close()
                raise
        return region

    async def _adopt(
        self,
        definition: VmDefinition,
        domain_xml: str,
        orphans: Orphans | None = None,
    ) -> None:
        placement = self._placer.known_now()
        found = orphans.of(definition.uuid) if orphans else []
        sizes = (definition.region_bytes, definition.slices.pinned_bytes)
        kept = [ranges for orphan in found for ranges in orphan.ranges()]
        if definition.device is Device.PLAIN:
            region = Region.adopt_named(
                *(definition.uuid, *sizes, region_owner(self._config)),
                kept=kept,
                made_by=qemu_uid(self._config),
                nodes=placement.nodes,
            )
        elif definition.device is Device.DOORBELL:
            doorbells = await Doorbells.connect(Path(definition.server_path))
            fd = os.dup(doorbells.memory_fd)
            try:
                region = Region.adopt_memfd(fd, definition.uuid, *sizes, kept)
            except RegionError:
                os.close(fd)
                doorbells.close()
                raise
            region.doorbells = doorbells
        else:  # its sessions have ended with kvgpud
            region = await self._make_region(definition, placement)
        if orphans:
            orphans.taken(definition.uuid)
        self._add(definition, region, domain_xml, found)
        _log.info("%s: taken up", definition.name)

    def _add(
        self,
        definition: VmDefinition,
        region: Region,
        domain_xml: str,
        orphans: Sequence[Orphan] = (),
    ) -> None:
        channel = VmChannel(
            *(self._broker, definition.name),
            *(partial(asyncio.open_unix_connection, definition.channel_path), region),
            self._check_isolation,
            orphans,
        )
        self.vms[definition.uuid] = Vm(definition, region, channel)
        write_whole(self._state_file(definition.uuid), domain_xml)

    def _check_not_running(self, definition: VmDefinition) -> None:
        # libvirt does not start a VM twice, but another libvirt or a QEMU by hand may: the one that
        # runs must not lose its region, whatever device the other start is to have.
        vm = self.vms.get(definition.uuid)
        definition = vm.definition if vm else definition
        sessions = vm.channel.sessions.values() if vm else ()
        check_unused(
            definition.uuid,
            [session.worker.pid for session in sessions if session.worker],
            Path(definition.server_path) if definition.server_path else None,
        )

    async def _forget(self, uuid: UUID) -> None:
        vm = self.vms.pop(uuid, None)
        self._state_file(uuid).unlink(missing_ok=True)
        if vm:
            await vm.channel.close()
            vm.region.close()
            _log.info("%s: released", vm.definition.name)

    def _state_file(self, uuid: UUID) -> Path:
        return self._domains / f"{uuid}.xml"

    async def _check_isolation(self) -> None:
        driver = await self._drivers.get()
        exposed = [d for d in driver.devices if d.get("pageable_memory_access")]
        if exposed and not self._config.allow_hmm:
            raise RegionError(
                "HMM is on: a VM's kernels could read all memory of its worker",
                hint="options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d, "
                "or allow_hmm = true in /etc/kvgpu/host.toml",
            )

    def _let_qemu_in(self) -> None:
        # QEMU (or libvirt for it) makes the VMs' sockets in this folder.
        self._dir.chmod(0o750)
        if os.geteuid() != 0:
            return
        try:
            os.chown(self._dir, pwd.getpwnam(self._config.qemu_user).pw_uid, -1)
        except KeyError:
            _log.info("no user %s: only root's QEMU can be served", self._config.qemu_user)
