# SPDX-License-Identifier: Apache-2.0
"""libvirt's events, behind the hook's back: VMs that were started without it, devices plugged in.

The hook is what counts: it is asked before a VM starts and may refuse. This notices what it missed
and never makes libvirt wait; kvgpud serves without it where libvirt's Python module is not there.

Each call waits for libvirt's daemon, and so is made in a thread. It changes libvirt's event loop,
which is asyncio's here, from there: that wakes nobody, but the end of the call does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from kvgpu.host.domain_xml import parts as read_parts
from kvgpu.host.errors import KvgpuError
from kvgpu.host.vms import VmRegistry

if TYPE_CHECKING:
    import libvirt

_log = logging.getLogger(__name__)
_RETRY_S = 10.0


class LibvirtWatch:
    """Tells the registry of VMs what libvirt says; connects again when libvirtd comes back."""

    def __init__(self, uri: str, vms: VmRegistry) -> None:
        self._uri = uri
        self._vms = vms
        self._tasks: set[asyncio.Task[None]] = set()
        self._main: asyncio.Task[None] | None = None
        self._said = ""

    def start(self) -> None:
        """Begin in the background; without libvirt's module say so once and do nothing."""
        try:
            import libvirt
            import libvirtaio
        except ImportError:
            _log.info("no libvirt events: Python's libvirt module is not there")
            return
        libvirt.registerErrorHandler(lambda *_: None, None)  # else each error is printed, too
        if libvirtaio.getCurrentImpl() is None:
            libvirtaio.virEventRegisterAsyncIOImpl(asyncio.get_running_loop())
        self._main = asyncio.create_task(self._watch())

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._main] if self._main else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        import libvirt

        while True:
            try:
                await self._listen()
            except libvirt.libvirtError as error:
                self._say(f"no libvirt events: {error}")
            await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        lost = asyncio.Event()
        connection, domains = await asyncio.to_thread(
            self._connect, lambda: loop.call_soon_threadsafe(lost.set)
        )
        try:
            self._say(f"libvirt events of {self._uri}")
            for domain in domains:
                await self._pass_on(domain, "started")
            await lost.wait()
        finally:
            await asyncio.to_thread(connection.close)

    def _connect(
        self, on_loss: Callable[[], object]
    ) -> tuple[libvirt.virConnect, list[libvirt.virDomain]]:
        # In one go, in a thread: a connection must not be closed while a thread is at work with it.
        import libvirt

        connection = libvirt.openReadOnly(self._uri)
        try:
            connection.registerCloseCallback(lambda *_: on_loss(), None)
            for event, callback in (
                (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle),
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, self._plugged),
                (libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, self._described),
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._pulled),
            ):
                connection.domainEventRegisterAny(None, event, callback, None)
            return connection, connection.listAllDomains()
        except libvirt.libvirtError:
            connection.close()
            raise

    def _lifecycle(
        self, _: libvirt.virConnect, domain: libvirt.virDomain, event: int, *__: object
    ) -> None:
        import libvirt

        if event == libvirt.VIR_DOMAIN_EVENT_STARTED:
            self._later(domain, "started")
        elif event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
            self._later(domain, "stopped")

    def _plugged(self, _: libvirt.virConnect, domain: libvirt.virDomain, *__: object) -> None:
        self._later(domain, "started")

    def _described(self, _: libvirt.virConnect, domain: libvirt.virDomain, *__: object) -> None:
        self._later(domain, "described")

    def _pulled(self, _: libvirt.virConnect, domain: libvirt.virDomain, *__: object) -> None:
        self._later(domain, "pulled")

    def _later(self, domain: libvirt.virDomain, operation: str) -> None:
        task = asyncio.create_task(self._pass_on(domain, operation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, domain: libvirt.virDomain, operation: str) -> None:
        import libvirt

        uuid = UUID(bytes=domain.UUID())
        try:
            xml = await asyncio.to_thread(domain.XMLDesc)
            is_active = bool(await asyncio.to_thread(domain.isActive))
            # Started again meanwhile, and the hook has seen to that; or only its definition has
            # changed.
            if operation != "pulled" and is_active == (operation == "stopped"):
                return
            parts = read_parts(xml)
            if operation == "pulled":
                if not parts.has_devices:
                    await self._vms.release(uuid)
                return
            await self._vms.handle("started" if operation == "described" else operation, xml)
            if operation == "started" and parts.has_devices and not parts.metadata:
                name = domain.name()
                _log.warning(
                    "%s: has kvgpu's devices and no slices, and is not served "
                    "(kvgpu vm detach %s --live, then kvgpu vm attach %s --live)",
                    *(name, name, name),
                )
        except libvirt.libvirtError:
            pass  # a transient domain has gone; its region goes with the hook's `release`
        except KvgpuError as error:
            if uuid not in self._vms.vms:  # else it is being plugged in, one device after another
                _log.warning("%s: runs, and cannot be served: %s", domain.name(), error)
        except OSError as error:
            _log.error("%s: %s: %s", domain.name(), operation, error)

    def _say(self, what: str) -> None:
        """Log what is new: libvirtd may be away for long."""
        if what != self._said:
            _log.info("%s", what)
            self._said = what
