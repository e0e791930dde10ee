# SPDX-License-Identifier: Apache-2.0
"""`kvgpu vm attach|detach --live` where it cannot be: refused, and all is as it was.

libvirt's test driver has running domains and plugs nothing in; what works is tested in a VM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest
from typer.testing import CliRunner

from kvgpu.host import libvirt_domains
from kvgpu.host.cli import app
from kvgpu.host.domain_xml import Slices, extend_domain, parts, pci_hole_bytes, read_definition
from kvgpu.host.errors import DaemonError, DomainError, KvgpuError
from kvgpu.host.hot_plug import HotPlug, check_room
from kvgpu.host.messages import (
    HookRequest,
    Request,
    SessionKillRequest,
    SessionListRequest,
)
from kvgpu.host.units import GIB, MIB

URI = "test:///default"
Q35 = (Path(__file__).parents[1] / "data/xml/test-driver-in.xml").read_text()
PC = Q35.replace("machine='q35'", "machine='pc-i440fx-7.2'")
UUID = "5f1c7f1e-52cb-4a0e-9d57-0c1f6f1d7a11"
SESSION = {"vm": "whole", "region": UUID, "comm": "train", "pid": 4711, "session": 7}
OTHER = SESSION | {"vm": "other", "region": UUID.replace("5", "6"), "comm": "else", "session": 8}


class Kvgpud:
    """Keeps what it is asked; answers as one that has `sessions`, or refuses like one."""

    def __init__(
        self, *sessions: dict[str, Any], may: bool = True, kill_error: str = "", last: bool = False
    ) -> None:
        self.requests: list[Request] = []
        self._sessions = list(sessions)
        self._may = may
        self._kill_error = kill_error
        self._last = last  # what cannot be killed has ended by itself

    def __call__(self, request: Request) -> dict[str, Any]:
        self.requests.append(request)
        match request:
            case SessionListRequest():
                return {"sessions": list(self._sessions)}
            case SessionKillRequest(session=number):
                if self._last or not self._kill_error:
                    self._sessions = [s for s in self._sessions if s["session"] != number]
                if self._kill_error:
                    raise DaemonError(self._kill_error)
            case HookRequest() if not self._may:
                raise DaemonError("only root may do that", hint="use sudo")
        return {}

    def operations(self) -> list[str]:
        return [r.operation for r in self.requests if isinstance(r, HookRequest)]

    def killed(self) -> list[int]:
        return [r.session for r in self.requests if isinstance(r, SessionKillRequest)]


def change(xml: str) -> str:
    return extend_domain(xml, Slices(GIB, 100, 256 * MIB), "/run/kvgpu")


@pytest.fixture
def connection() -> Iterator[libvirt.virConnect]:
    connection = libvirt.open(URI)
    yield connection
    for name in ("whole", "host"):  # errors that were raised hold connections, and so these
        with contextlib.suppress(libvirt.libvirtError):
            connection.lookupByName(name).destroy()
        with contextlib.suppress(libvirt.libvirtError):
            connection.lookupByName(name).undefine()
    connection.close()


def running(connection: libvirt.virConnect, xml: str) -> libvirt.virDomain:
    domain = connection.defineXML(xml)
    domain.create()
    return domain


def persistent(domain: libvirt.virDomain) -> str:
    xml: str = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
    return xml


def attach(*options: str) -> BaseException | None:
    arguments = ["attach", "whole", "--memory", "8GiB", "--live", *options]
    arguments += ["--connect", URI, "--runtime-dir", "/nonexistent"]
    return CliRunner().invoke(app, ["vm", *arguments]).exception


def detach(kvgpud: Kvgpud, *, force: bool, name: str = "whole") -> KvgpuError:
    """Return why it was not done: the test driver does none of it."""
    with libvirt_domains.connect(URI) as ours, pytest.raises(KvgpuError) as raised:
        HotPlug(ours, name, kvgpud).detach(force=force)
    return raised.value


def test_q35_is_refused_with_the_reason_and_what_to_do(connection: libvirt.virConnect) -> None:
    domain = running(connection, Q35)
    before = persistent(domain)
    error = attach()
    assert isinstance(error, DomainError)
    assert "machine type q35: the memory of a device" in error.message
    assert "gets no address" in error.message
    assert "without --live, then shut it off and start it" in error.hint
    assert persistent(domain) == before


def test_region_that_may_find_no_address_is_refused(connection: libvirt.virConnect) -> None:
    """What a PC has room for was tried: 2 GiB fit with 1 GiB of RAM, and do not with 4 GiB."""
    domain = running(connection, PC)
    before = persistent(domain)
    error = attach("--pinned", "512MiB")
    assert isinstance(error, DomainError)
    assert "a region of 2 GiB may find no address" in error.message
    assert error.hint.startswith("--pinned 510MiB at most")
    assert persistent(domain) == before
    assert attach("--pinned", "510MiB", "--dry-run") is None
    assert attach("--dry-run") is None
    assert attach("--pinned", "8GiB", "--no-shmem", "--dry-run") is None


@pytest.mark.parametrize(("hole_gib", "largest_gib"), [(1, 1), (2, 1), (3, 2), (6, 2), (7, 4)])
def test_room_is_what_the_domain_says(hole_gib: int, largest_gib: int) -> None:
    root = f"<pcihole64 unit='KiB'>{hole_gib << 20}</pcihole64>"
    root = f"<controller type='pci' model='pci-root'>{root}</controller>"
    hole_bytes = pci_hole_bytes(PC.replace("<devices>", f"<devices>{root}"))
    assert hole_bytes == hole_gib * GIB
    check_room("whole", largest_gib * GIB, hole_bytes)
    with pytest.raises(DomainError, match="no address"):
        check_room("whole", 2 * largest_gib * GIB, hole_bytes)


def test_domain_that_does_not_run_is_refused(connection: libvirt.virConnect) -> None:
    connection.defineXML(PC)
    error = attach()
    assert isinstance(error, DomainError)
    assert str(error) == "whole does not run (leave --live out)"


def test_without_kvgpud_nothing_changes(connection: libvirt.virConnect) -> None:
    domain = running(connection, PC)
    before = persistent(domain)
    error = attach()
    assert isinstance(error, DaemonError)
    assert "start kvgpud" in error.hint
    assert persistent(domain) == before


def test_dry_run_asks_nobody(connection: libvirt.virConnect) -> None:
    domain = running(connection, PC)
    before = persistent(domain)
    assert attach("--dry-run") is None
    assert persistent(domain) == before


def test_device_that_libvirt_refuses_leaves_nothing_behind(connection: libvirt.virConnect) -> None:
    domain = running(connection, PC)
    before = persistent(domain)
    kvgpud = Kvgpud()
    with libvirt_domains.connect(URI) as ours, pytest.raises(DomainError, match="cannot plug"):
        HotPlug(ours, "whole", kvgpud).attach(change)
    assert kvgpud.operations() == ["prepare", "release"]
    assert persistent(domain) == before
    assert not parts(domain.XMLDesc()).is_any


def test_running_domain_with_devices_is_not_given_others(connection: libvirt.virConnect) -> None:
    running(connection, change(PC))
    error = attach()
    assert isinstance(error, DomainError)
    assert "devices already" in error.message
    assert "kvgpu vm detach whole --live" in error.hint


def test_detach_is_refused_while_programs_have_sessions(connection: libvirt.virConnect) -> None:
    domain = running(connection, change(PC))
    kvgpud = Kvgpud(SESSION, OTHER)
    error = detach(kvgpud, force=False)
    assert error.message == "whole uses its slices: train (pid 4711)"
    assert "--force" in error.hint
    assert (kvgpud.operations(), kvgpud.killed()) == ([], [])
    assert read_definition(persistent(domain))


@pytest.mark.parametrize("force", [True, False])
def test_detach_by_someone_who_may_not_changes_nothing(
    connection: libvirt.virConnect, force: bool
) -> None:
    domain = running(connection, change(PC))
    before, live = persistent(domain), domain.XMLDesc()
    kvgpud = Kvgpud(*[SESSION] * force, may=False)
    assert detach(kvgpud, force=force).message == "only root may do that"
    assert kvgpud.killed() == []
    assert (persistent(domain), domain.XMLDesc()) == (before, live)


def test_what_asks_whether_we_may_means_nothing_to_kvgpud(connection: libvirt.virConnect) -> None:
    running(connection, change(PC))
    kvgpud = Kvgpud(may=False)
    detach(kvgpud, force=False)
    (asked,) = (r for r in kvgpud.requests if isinstance(r, HookRequest))
    assert asked.operation not in ("stopped", "release")
    assert read_definition(asked.domain_xml) is None


def test_transient_domain_keeps_its_sessions(connection: libvirt.virConnect) -> None:
    domain = connection.createXML(change(PC))
    kvgpud = Kvgpud(SESSION)
    assert "a transient domain has no definition" in detach(kvgpud, force=True).message
    assert kvgpud.killed() == []
    assert parts(domain.XMLDesc()).has_devices


def test_session_that_cannot_be_ended_leaves_the_domain_as_it_was(
    connection: libvirt.virConnect,
) -> None:
    domain = running(connection, change(PC))
    before, live = persistent(domain), domain.XMLDesc()
    error = detach(Kvgpud(SESSION, kill_error="kvgpud did not answer"), force=True)
    assert error.message == "kvgpud did not answer"
    assert (persistent(domain), domain.XMLDesc()) == (before, live)


@pytest.mark.parametrize("kill_error", ["", "no session 7"])
def test_forced_detach_ends_the_sessions_that_have_not_ended_by_themselves(
    connection: libvirt.virConnect, kill_error: str
) -> None:
    domain = running(connection, change(PC))
    kvgpud = Kvgpud(SESSION, OTHER, kill_error=kill_error, last=True)
    assert "cannot pull" in detach(kvgpud, force=True).message  # the test driver pulls nothing
    assert kvgpud.killed() == [7]
    assert kvgpud.operations()[-1] == "release"
    assert not parts(persistent(domain)).is_any


def test_sessions_of_the_host_are_not_those_of_a_vm_named_host(
    connection: libvirt.virConnect,
) -> None:
    running(connection, change(PC).replace("<name>whole<", "<name>host<"))
    kvgpud = Kvgpud(OTHER | {"vm": "host"})
    assert "cannot pull" in detach(kvgpud, name="host", force=True).message
    assert kvgpud.killed() == []


def test_detach_of_what_has_no_slices_is_refused(connection: libvirt.virConnect) -> None:
    running(connection, PC)
    with (
        libvirt_domains.connect(URI) as ours,
        pytest.raises(DomainError, match="runs without slices"),
    ):
        HotPlug(ours, "whole", Kvgpud()).detach(force=True)
