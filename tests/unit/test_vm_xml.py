# SPDX-License-Identifier: Apache-2.0
"""`kvgpu vm xml --dry-run` and compute shares, on libvirt's test driver."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import libvirt
import pytest
from lxml import etree
from typer.testing import CliRunner, Result

from kvgpu.host import check
from kvgpu.host.cli import app
from kvgpu.host.domain_check import SCHEMA, _check_schema
from kvgpu.host.errors import ConfigError, DomainError

URI = "test:///default"
DATA = Path(__file__).parents[1] / "data/xml"


@pytest.fixture(autouse=True)
def connection() -> Iterator[libvirt.virConnect]:
    """Open the test driver; what it knows lives as long as a connection does."""
    connection = libvirt.open(URI)
    yield connection
    connection.close()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.qcow2"
    path.touch()
    return path


def vm_xml(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["vm", "xml", *arguments, "--connect", URI])


def findings(*arguments: str) -> tuple[int, dict[str, str]]:
    """Return exit status, and the state of each thing that --dry-run looked at."""
    result = vm_xml(*arguments, "--memory=1GiB", "--dry-run", "--json")
    found = json.loads(result.stdout)
    assert all(finding["to_do"] for finding in found if finding["state"] != "ok")
    return result.exit_code, {finding["what"]: finding["state"] for finding in found}


def test_domain_that_could_start(disk: Path, tmp_path: Path) -> None:
    nowhere = f"--runtime-dir={tmp_path}"
    status, found = findings("new", f"--disk={disk}", "--network=default", nowhere)
    assert found.pop("GPU memory") == "warning"  # no kvgpud here to ask
    assert set(found) == {"XML", "file", "name", "network", "region"}
    assert set(found.values()) == {"ok"}
    assert status == 0


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("file", ("new", "--disk=/no/such.qcow2")),
        ("file", ("new", "--kernel=/no/such/vmlinux")),
        ("name", ("test",)),  # the test driver has one of this name
        ("network", ("new", "--network=nowhere")),
        ("region", ("new", "--pinned=4TiB")),
        ("XML", ("new", "--mac=no-address")),
    ],
)
def test_what_would_keep_it_from_starting(what: str, arguments: tuple[str, ...]) -> None:
    status, found = findings(*arguments)
    assert [name for name, state in found.items() if state == "failed"] == [what]
    assert status == 1


def test_dry_run_for_people_says_what_to_do_and_prints_no_xml() -> None:
    result = vm_xml("test", "--memory=1GiB", "--dry-run")
    assert "failed  name: test is taken" in result.stdout
    assert "to do: kvgpu vm attach test" in result.stdout
    assert "<domain" not in result.stdout


def test_domain_that_is_extended_may_keep_its_name(connection: libvirt.virConnect) -> None:
    connection.defineXML((DATA / "test-driver-in.xml").read_text())
    _, found = findings("--from", str(DATA / "test-driver-in.xml"))
    assert found["name"] == "ok"


@pytest.mark.parametrize(
    ("options", "state", "where"),
    [
        ((), "failed", "/dev/shm has"),
        (("--doorbell",), "failed", "the host has"),
        (("--no-shmem",), "warning", "the host has"),
    ],
)
def test_region_is_held_against_where_it_will_be(
    options: tuple[str, ...], state: str, where: str
) -> None:
    result = vm_xml("new", "--memory=1GiB", "--pinned=4TiB", "--dry-run", "--json", *options)
    (found,) = (finding for finding in json.loads(result.stdout) if finding["what"] == "region")
    assert found["state"] == state
    assert found["detail"].startswith(where)


def test_disks_that_are_no_files_are_not_looked_for_as_such(disk: Path, tmp_path: Path) -> None:
    disks = [
        "<disk type='block'><source dev='/dev/null'/><target dev='vda'/></disk>",
        "<disk type='block'><source dev='/dev/no-such'/><target dev='vdb'/></disk>",
        "<disk type='volume'><source pool='p' volume='v'/><target dev='vdc'/></disk>",
        "<disk type='network'><source protocol='nbd'><host name='h'/></source>"
        "<target dev='vdd'/></disk>",
        f"<disk type='file'><source file='{disk}'/><target dev='vde'/></disk>",
        "<disk type='file' device='cdrom'><target dev='sda'/></disk>",
    ]
    text = (DATA / "test-driver-in.xml").read_text()
    plain = re.sub("<disk .*?</disk>", "", text).replace("<devices>", f"<devices>{''.join(disks)}")
    (tmp_path / "domain.xml").write_text(plain)
    result = vm_xml("--from", str(tmp_path / "domain.xml"), "--memory=1GiB", "--dry-run", "--json")
    found = [f for f in json.loads(result.stdout) if f["what"] in ("file", "device")]
    assert {(f["what"], f["detail"], f["state"]) for f in found} == {
        ("file", str(disk), "ok"),
        ("device", "/dev/null", "ok"),
        ("device", "/dev/no-such is not there", "failed"),
    }


def test_schema_refuses_what_libvirt_would() -> None:
    assert SCHEMA.exists()
    assert _check_schema(etree.fromstring(b"<domain><nonsense/></domain>"), SCHEMA).state == (
        "failed"
    )
    missing = _check_schema(etree.fromstring(b"<domain/>"), Path("/no/such.rng"))
    assert missing.state == "warning"


@pytest.mark.parametrize(("has_kvm", "type_"), [(True, "kvm"), (False, "qemu")])
def test_domain_that_is_emulated_is_said_to_be(
    has_kvm: bool, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "has_kvm", lambda: has_kvm)
    result = vm_xml("new", "--memory=1GiB")
    assert f'<domain type="{type_}">' in result.stdout
    assert ("no KVM on this host" in result.stderr) is not has_kvm
    assert "no KVM" not in vm_xml("new", "--memory=1GiB", "--no-kvm").stderr


def test_compute_share_is_stored_and_said_to_be_not_enforced_yet() -> None:
    result = vm_xml("new", "--memory=1GiB", "--compute=25")
    assert '<kvgpu:compute unit="percent">25</kvgpu:compute>' in result.stdout
    assert "not enforced yet" in result.stderr


def test_compute_share_is_refused_by_strict() -> None:
    result = vm_xml("new", "--memory=1GiB", "--compute=25", "--strict")
    assert isinstance(result.exception, ConfigError)
    assert "not enforced yet" in result.exception.message
    assert result.exception.hint
    assert vm_xml("new", "--memory=1GiB", "--strict").exit_code == 0


def test_pinned_memory_of_an_existing_domain_is_a_quarter_of_its_ram() -> None:
    result = vm_xml("--from", str(DATA / "test-driver-in.xml"), "--memory=1GiB")
    assert '<kvgpu:pinned unit="MiB">2048</kvgpu:pinned>' in result.stdout


@pytest.mark.parametrize("disk", [":raw", "/a:vmdk", "/a.qcow2:"])
def test_disk_that_is_none_is_refused(disk: str) -> None:
    result = vm_xml("new", "--memory=1GiB", f"--disk={disk}")
    assert isinstance(result.exception, ConfigError)
    assert "is not a disk" in result.exception.message


def test_more_disks_than_letters_are_refused() -> None:
    result = vm_xml("new", "--memory=1GiB", *(f"--disk=/{i}.img" for i in range(27)))
    assert isinstance(result.exception, DomainError)


def test_json_has_the_xml() -> None:
    usual = ("new", "--memory=1GiB", "--uuid=5f1c7f1e-52cb-4a0e-9d57-0c1f6f1d7a11")
    assert json.loads(vm_xml(*usual, "--json").stdout) == {"xml": vm_xml(*usual).stdout}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("latin1.xml", "latin1.xml: not UTF-8"),
        ("", ": Is a directory"),
        ("none.xml", "none.xml: No such file"),
    ],
)
def test_file_that_cannot_be_read_is_named(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "latin1.xml").write_bytes("<domain><name>für</name></domain>".encode("latin1"))
    result = vm_xml("--from", str(tmp_path / name), "--memory=1GiB")
    assert isinstance(result.exception, ConfigError)
    assert message in result.exception.message
    assert result.exception.hint


def test_input_that_is_not_utf8_is_refused() -> None:
    arguments = ["vm", "xml", "--from", "-", "--memory=1GiB"]
    result = CliRunner().invoke(app, arguments, input=b"<domain>\xfc</domain>")
    assert isinstance(result.exception, ConfigError)
    assert "--from -: not UTF-8" in result.exception.message
