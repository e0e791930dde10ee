# SPDX-License-Identifier: Apache-2.0
"""`kvgpu vm attach` and `detach` on libvirt's test driver, which keeps domains in this process."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import libvirt
import pytest
from typer.testing import CliRunner, Result

from kvgpu.host import cli_vm
from kvgpu.host.cli import app
from kvgpu.host.cli_vm import _difference, _kept_vms
from kvgpu.host.domain_xml import normal_form, read_definition
from kvgpu.host.errors import ConfigError, DomainError, KvgpuError
from kvgpu.host.units import GIB, MIB

URI = "test:///default"
CLONE = UUID("5f1c7f1e-52cb-4a0e-9d57-0c1f6f1d7a12")
DATA = Path(__file__).parents[1] / "data/xml"


@pytest.fixture
def connection() -> Iterator[libvirt.virConnect]:
    """Open the test driver; what it knows lives as long as a connection does."""
    connection = libvirt.open(URI)
    yield connection
    connection.close()


@pytest.fixture
def domain(connection: libvirt.virConnect) -> libvirt.virDomain:
    """A domain that is shut off, with much in it that is none of ours."""
    return connection.defineXML((DATA / "test-driver-in.xml").read_text())


def persistent(domain: libvirt.virDomain) -> str:
    xml: str = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
    return xml


def kvgpu(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["vm", *arguments, "--connect", URI])


def ok(*arguments: str) -> Result:
    result = kvgpu(*arguments)
    assert result.exception is None, result.exception
    return result


def test_attach_adds_our_parts_and_leaves_all_else(domain: libvirt.virDomain) -> None:
    before = persistent(domain)
    ok("attach", "whole", "--memory", "8GiB", "--compute", "25")
    after = persistent(domain)
    found = read_definition(after)
    assert found
    assert found.slices.memory_bytes == 8 * GIB
    assert found.slices.compute_percent == 25
    assert found.slices.pinned_bytes == 2 * GIB  # a quarter of its RAM
    ok("detach", "whole")
    assert persistent(domain) == before


def test_attach_is_as_in_the_golden_file(domain: libvirt.virDomain) -> None:
    ok("attach", "whole", "--memory", "8GiB", "--compute", "25")
    golden = DATA / "test-driver-out.xml"
    if os.environ.get("KVGPU_REGENERATE"):
        golden.write_text(normal_form(persistent(domain)))
    assert normal_form(persistent(domain)) == golden.read_text()


def test_attach_again_changes_the_slices(domain: libvirt.virDomain) -> None:
    ok("attach", "whole", "--memory", "8GiB")
    ok("attach", str(UUID(bytes=domain.UUID())), "--memory", "2GiB", "--pinned", "64MiB")
    found = read_definition(persistent(domain))
    assert found
    assert found.slices.memory_bytes == 2 * GIB
    assert found.slices.pinned_bytes == 64 * MIB


def test_dry_run_shows_what_would_change_and_changes_nothing(domain: libvirt.virDomain) -> None:
    before = persistent(domain)
    shown = ok("attach", "whole", "--memory", "8GiB", "--dry-run").stdout.splitlines()
    added = [line[1:].strip() for line in shown if line.startswith("+") and line[1] != "+"]
    assert any(line.startswith("<shmem ") for line in added)
    assert not [line for line in shown if line.startswith("-") and line[1] != "-"]
    assert persistent(domain) == before


def test_difference_leaves_out_quotes_alone() -> None:
    text = "<domain>\n  <!-- mine --><name a='b'>x</name>\n</domain>\n"
    assert not list(_difference("x", text, text.replace("'", '"')))
    for changed in (text.replace("<!-- mine -->", ""), text.replace("\n  ", "\n    ")):
        assert list(_difference("x", text, changed))


def test_json_says_what_changes_and_when(domain: libvirt.virDomain) -> None:
    before = persistent(domain)
    dry = json.loads(ok("attach", "whole", "--memory=8GiB", "--dry-run", "--json").stdout)
    assert persistent(domain) == before
    done = json.loads(ok("attach", "whole", "--memory=8GiB", "--json").stdout)
    assert done | {"difference": []} == dry | {"dry_run": False, "difference": []}
    assert any("org.kvgpu.0" in line for line in dry["difference"])
    assert done["takes_effect"] == "at its next start"
    assert any("<kvgpu:memory" in line for line in done["difference"])
    assert json.loads(ok("detach", "whole", "--json").stdout)["domain"] == "whole"


def test_running_domain_is_changed_for_its_next_start(connection: libvirt.virConnect) -> None:
    domain = connection.lookupByName("test")  # which runs
    assert domain.isActive()
    result = ok("attach", "test", "--memory", "8GiB")
    assert "until it is shut off and started" in result.stderr
    assert domain.isActive()
    assert read_definition(persistent(domain))
    assert "kvgpu" not in domain.XMLDesc()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("attach", "nobody", "--memory", "1GiB"), DomainError, "nobody: Domain not found"),
        (("attach", "whole"), ConfigError, "--memory is missing"),
        (("attach", "whole", "--memory", "1XiB"), KvgpuError, "1XiB"),
        (("attach", "whole", "--memory", "1GiB", "--pinned", "3MiB"), DomainError, "2 MiB"),
        (("attach", "whole", "--memory", "1GiB", "--compute", "0"), DomainError, "percentage"),
        (
            ("attach", "whole", "--memory", "1GiB", "--compute", "25", "--strict"),
            ConfigError,
            "not enforced yet",
        ),
        (("detach", "whole"), DomainError, "has no slices"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(
    domain: libvirt.virDomain, arguments: tuple[str, ...], error: type[KvgpuError], message: str
) -> None:
    before = persistent(domain)
    result = kvgpu(*arguments)
    assert isinstance(result.exception, error)
    assert message in result.exception.message
    assert result.exception.hint or error is DomainError
    assert persistent(domain) == before


def test_libvirt_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(app, ["vm", "detach", "x", "--connect", "qemu:///nowhere"])
    assert isinstance(result.exception, DomainError)
    assert "qemu:///nowhere" in result.exception.message


def test_list_of_all_has_the_domains_that_do_not_run(domain: libvirt.virDomain) -> None:
    ok("attach", "whole", "--memory", "8GiB", "--compute", "25")
    kept = _kept_vms(URI)
    assert [vm["state"] for vm in kept if vm["name"] == "whole"] == ["shut off"]
    assert "test" not in [vm["name"] for vm in kept if vm["state"] == "shut off"]


def test_list_of_all_has_broken_domains_with_what_is_wrong(
    connection: libvirt.virConnect, domain: libvirt.virDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok("attach", "whole", "--memory", "8GiB")
    clone = persistent(domain).replace(domain.UUIDString(), str(CLONE), 1)  # as virt-clone does it
    broken = connection.defineXML(clone.replace("<name>whole<", "<name>clone<"))
    monkeypatch.setattr(cli_vm, "ask", lambda *_: {"vms": []})
    try:
        vms = {vm["name"]: vm for vm in json.loads(ok("list", "--all", "--json").stdout)}
        table = ok("list", "--all").stdout
    finally:
        broken.undefine()
    assert vms["whole"]["state"] == "shut off"
    assert "problem" not in vms["whole"]
    assert vms["clone"]["state"] == "broken"
    assert vms["clone"]["uuid"] == str(CLONE)
    assert vms["clone"]["problem"].startswith("clone: the domain has kvgpu metadata, but not one")
    assert "kvgpu vm attach clone" in vms["clone"]["problem"]
    assert vms["clone"].keys() - {"problem"} == vms["whole"].keys()
    assert vms["clone"]["problem"] in table
    assert re.search(r"^whole +shut off +8 GiB", table, re.MULTILINE), table
