# SPDX-License-Identifier: Apache-2.0
"""The VMs of this host: made known by the libvirt hook, kept over a restart of kvgpud."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from kvgpu.host.config import HostConfig, region_owner
from kvgpu.host.domain_xml import VmDefinition, read_definition
from kvgpu.host.errors import KvgpuError, RegionError
from kvgpu.host.inventory import Driver
from kvgpu.host.ivshmem.region import Region, check_unused
from kvgpu.host.messages import VmInfo
from kvgpu.host.orphans import Orphan, Orphans
from kvgpu.host.sessions import SessionBroker
from kvgpu.host.vm_channel import VmChannel

_log = logging.getLogger(__name__)


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
            region_bytes=self.region.size_bytes,
            memory_bytes=slices.memory_bytes,
            compute_percent=slices.compute_percent,
            pinned_bytes=slices.pinned_bytes,
            n_sessions=len(self.channel.sessions),
        )


class VmRegistry:
    """Does what the hook asks. The domain XML of each VM is kept in RUNTIME_DIR/vm/UUID.xml."""

    def __init__(
        self,
        runtime_dir: Path,
        config: HostConfig,
        broker: SessionBroker,
        get_driver: Callable[[], Awaitable[Driver]],
    ) -> None:
        self.vms: dict[UUID, Vm] = {}
        self._dir = runtime_dir / "vm"
        self._config = config
        self._broker = broker
        self._get_driver = get_driver
        self._lock = asyncio.Lock()  # one hook at a time: prepare and release of a VM may overlap
        self._dir.mkdir(parents=True, exist_ok=True)
        self._let_qemu_in()

    async def handle(self, operation: str, domain_xml: str) -> None:
        """Act on one hook call; what concerns no VM of ours is ignored.

        Raises KvgpuError where libvirt should not start the VM.
        """
        if operation in ("stopped", "release"):
            await self._release(domain_xml)
            return
        definition = read_definition(domain_xml)
        if definition is None:
            return
        async with self._lock:
            if operation == "prepare":
                await self._check_isolation()
                self._check_not_running(definition.uuid)
                await self._forget(definition.uuid)
                self._add(definition, self._make_region(definition), domain_xml)
            elif operation in ("started", "reconnect"):
                if definition.uuid not in self.vms:
                    self._adopt(definition, domain_xml)
                self.vms[definition.uuid].channel.look_now()

    def adopt_known(self, orphans: Orphans) -> None:
        """Take up the VMs that ran while kvgpud was away, and their sessions."""
        for path in self._dir.glob("*.xml"):
            try:
                domain_xml = path.read_text()
                definition = read_definition(domain_xml)
                if definition:
                    self._adopt(definition, domain_xml, orphans)
            except (KvgpuError, OSError) as error:
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

    async def _release(self, domain_xml: str) -> None:
        # Runs after a refused start, too, and with any XML: nothing here may fail the caller.
        try:
            definition = read_definition(domain_xml)
        except KvgpuError as error:
            _log.info("release of a domain that cannot be read: %s", error)
            return
        if definition:
            async with self._lock:
                await self._forget(definition.uuid)

    def _make_region(self, definition: VmDefinition) -> Region:
        sizes = (definition.region_bytes, definition.slices.pinned_bytes)
        if not definition.has_shmem:  # sessions of the byte-stream form: nobody else maps it
            return Region.create_memfd(definition.uuid, *sizes)
        return Region.create_named(definition.uuid, *sizes, region_owner(self._config))

    def _adopt(
        self, definition: VmDefinition, domain_xml: str, orphans: Orphans | None = None
    ) -> None:
        found = orphans.of(definition.uuid) if orphans else []
        if definition.has_shmem:
            region = Region.adopt_named(
                *(definition.uuid, definition.region_bytes, definition.slices.pinned_bytes),
                [kept for orphan in found for kept in orphan.ranges()],
            )
        else:
            region = self._make_region(definition)  # its sessions have ended with kvgpud
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
        self._state_file(definition.uuid).write_text(domain_xml)

    def _check_not_running(self, uuid: UUID) -> None:
        # libvirt does not start a VM twice, but another libvirt or a QEMU by hand may: the one that
        # runs must not lose its region.
        vm = self.vms.get(uuid)
        sessions = vm.channel.sessions.values() if vm else ()
        check_unused(uuid, [session.worker.pid for session in sessions if session.worker])

    async def _forget(self, uuid: UUID) -> None:
        vm = self.vms.pop(uuid, None)
        self._state_file(uuid).unlink(missing_ok=True)
        if vm:
            await vm.channel.close()
            vm.region.close()
            _log.info("%s: released", vm.definition.name)

    def _state_file(self, uuid: UUID) -> Path:
        return self._dir / f"{uuid}.xml"

    async def _check_isolation(self) -> None:
        driver = await self._get_driver()
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
