# SPDX-License-Identifier: Apache-2.0
"""libvirt's events, of its test driver, whose domains live in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from uuid import UUID

import libvirt
import libvirtaio
import pytest

from kvgpu.host import libvirt_watch
from kvgpu.host.domain_xml import Slices, extend_domain
from kvgpu.host.errors import RegionError
from kvgpu.host.libvirt_watch import LibvirtWatch
from kvgpu.host.units import GIB
from kvgpu.host.vms import VmRegistry

URI = "test:///default"
DATA = Path(__file__).parents[1] / "data/xml"


class Registry:
    """Keeps what it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.vms: dict[UUID, object] = {}
        self._error = error

    async def handle(self, operation: str, domain_xml: str) -> None:
        name = domain_xml.partition("<name>")[2].partition("</name>")[0]
        self.calls.append((operation, name))
        if self._error:
            raise self._error


async def eventually(registry: Registry, call: tuple[str, str]) -> None:
    deadline_s = time.monotonic() + 20
    while call not in registry.calls:
        assert time.monotonic() < deadline_s, registry.calls
        await asyncio.sleep(0.01)


@pytest.fixture
def domain() -> Iterator[libvirt.virDomain]:
    """A domain that is shut off."""
    connection = libvirt.open(URI)
    xml = (DATA / "test-driver-in.xml").read_text()
    yield connection.defineXML(extend_domain(xml, Slices(GIB, 100, GIB), "/run/kvgpu"))
    connection.close()


def describe(domain: libvirt.virDomain, which: int) -> None:
    """As `virsh desc` does."""
    domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_DESCRIPTION, "text", None, None, which)


# One test: libvirt's event loop is the process's, and stays with the asyncio loop it got first.
def test_starts_and_stops_are_passed_on(domain: libvirt.virDomain) -> None:
    running = domain.connect().lookupByName("test")

    async def check(registry: Registry) -> None:
        watch = LibvirtWatch(URI, cast(VmRegistry, registry))
        watch.start()
        try:
            await eventually(registry, ("started", "test"))  # runs from the beginning
            describe(domain, libvirt.VIR_DOMAIN_AFFECT_CONFIG)  # its definition, not a VM
            describe(running, libvirt.VIR_DOMAIN_AFFECT_LIVE)
            while registry.calls.count(("started", "test")) < 2:
                await asyncio.sleep(0.01)
            assert ("started", "whole") not in registry.calls
            await asyncio.to_thread(domain.create)
            await eventually(registry, ("started", "whole"))
            await asyncio.to_thread(domain.destroy)
            await eventually(registry, ("stopped", "whole"))
        finally:
            await watch.close()

    async def check_both() -> None:
        await check(Registry())
        await check(Registry(RegionError("the region is another's", hint="stop the VM")))

    asyncio.run(check_both())


class Vanishing:
    """A domain of a libvirt that is going away, or transient and gone already."""

    def __init__(self, name: str, is_there: bool) -> None:
        self._name = name
        self._is_there = is_there

    def UUID(self) -> bytes:
        return bytes(16)

    def name(self) -> str:
        return self._name

    def XMLDesc(self) -> str:
        return f"<domain><name>{self._name}</name></domain>"

    def isActive(self) -> bool:
        if not self._is_there:
            raise libvirt.libvirtError("no domain with matching uuid")
        return True


class Restarting:
    """A connection to a libvirtd that ends when it is asked for its domains for the first time."""

    n_made = 0
    n_closed = 0

    def __init__(self, uri: str) -> None:
        Restarting.n_made += 1
        self._ends = self.n_made == 1

    def registerCloseCallback(self, *_: object) -> None:
        assert threading.current_thread() is not threading.main_thread()

    def domainEventRegisterAny(self, *_: object) -> None:
        assert threading.current_thread() is not threading.main_thread()

    def listAllDomains(self) -> list[Vanishing]:
        if self._ends:
            raise libvirt.libvirtError("client socket is closed")
        return [Vanishing("gone", False), Vanishing("a", True), Vanishing("b", True)]

    def close(self) -> None:
        Restarting.n_closed += 1


@pytest.mark.parametrize("error", [None, OSError(28, "No space left on device")])
def test_watch_goes_on_after_an_error(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(libvirt, "openReadOnly", Restarting)
    monkeypatch.setattr(Restarting, "n_made", 0)
    monkeypatch.setattr(Restarting, "n_closed", 0)
    monkeypatch.setattr(libvirtaio, "virEventRegisterAsyncIOImpl", lambda _: None)
    monkeypatch.setattr(libvirt_watch, "_RETRY_S", 0.01)

    async def check(registry: Registry) -> None:
        watch = LibvirtWatch(URI, cast(VmRegistry, registry))
        watch.start()
        await eventually(registry, ("started", "b"))
        await watch.close()

    registry = Registry(error)
    with caplog.at_level("INFO"):
        asyncio.run(check(registry))
    assert registry.calls == [("started", "a"), ("started", "b")]
    assert (Restarting.n_made, Restarting.n_closed) == (2, 2)
    assert "no libvirt events: client socket is closed" in caplog.text
    assert ("a: started: [Errno 28] No space left on device" in caplog.text) == bool(error)


def test_libvirt_that_is_not_there_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        watch = LibvirtWatch("qemu:///nowhere", cast(VmRegistry, Registry()))
        watch.start()
        await asyncio.sleep(0.5)
        await watch.close()

    with caplog.at_level("INFO"):
        asyncio.run(check())
    assert [r.message for r in caplog.records if "no libvirt events" in r.message][1:] == []
    assert "no libvirt events" in caplog.text
