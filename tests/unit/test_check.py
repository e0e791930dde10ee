# SPDX-License-Identifier: Apache-2.0
"""`kvgpu check`: what each finding rests on."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from framework.kvgpud import kvgpud, run

from kvgpu.host.check import (
    TRUST_NOTE,
    _check_hmm,
    check_apparmor_rule,
    check_confinement,
    check_driver,
    check_hmm,
    check_hook,
    check_huge_pages,
    check_kvm,
    check_permissions,
    has_kvm,
)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a machine that was started an hour ago."""
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "uptime").write_text("3600.00 7000.00\n")
    return folder


def add_process(proc: Path, pid: int, name: str, started_s_ago: float) -> None:
    ticks = int((3600 - started_s_ago) * os.sysconf("SC_CLK_TCK"))
    (proc / str(pid)).mkdir()
    fields = ["S", *["0"] * 18, str(ticks), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    path = tmp_path / "kvgpu"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_hook_that_libvirt_has_seen(hook: Path, proc: Path) -> None:
    assert check_hook(hook, proc).state == "ok"
    add_process(proc, 10, "libvirtd", -1)  # started after the hook was made
    assert check_hook(hook, proc).state == "ok"


@pytest.mark.parametrize("daemon", ["libvirtd", "virtqemud"])
def test_hook_that_came_after_libvirt_is_a_failure(hook: Path, proc: Path, daemon: str) -> None:
    add_process(proc, 10, daemon, 60)
    add_process(proc, 11, "a (strange) name", 60)
    finding = check_hook(hook, proc)
    assert finding.state == "failed"
    assert f"restart {daemon}" in finding.to_do


def test_hook_that_is_missing_or_not_executable(hook: Path, proc: Path, tmp_path: Path) -> None:
    assert check_hook(tmp_path / "none", proc).state == "failed"
    hook.chmod(0o644)
    assert check_hook(hook, proc).state == "failed"


def test_process_times_are_those_of_the_kernel() -> None:
    from kvgpu.host.check import _start_times

    name = Path("/proc/self/comm").read_text().strip()
    assert any(abs(found - time.time()) < 86400 for found in _start_times(name, Path("/proc")))


def test_apparmor_rule(tmp_path: Path) -> None:
    rules = tmp_path / "libvirt-qemu"
    missing = check_apparmor_rule(rules)
    assert missing.state == "warning"
    rules.write_text("# /dev/shm/kvgpu-* rw,\n")
    assert check_apparmor_rule(rules).state == "warning"
    line = missing.to_do.split("`")[1]
    rules.write_text(f"# ours\n  {line}\n")
    assert check_apparmor_rule(rules).state == "ok"


@pytest.mark.parametrize(
    ("options", "overall", "state"),
    [
        ("rw", "never", "warning"),
        ("rw,huge=advise", "never", "warning"),  # what maps a region does not ask for them
        ("rw,huge=within_size", "never", "ok"),
        ("rw,huge=always,size=4g", "advise", "ok"),
        ("rw,huge=always", "deny", "warning"),
        ("rw", "force", "ok"),
    ],
)
def test_huge_pages(tmp_path: Path, options: str, overall: str, state: str) -> None:
    mounts, shmem_enabled = tmp_path / "mounts", tmp_path / "shmem_enabled"
    mounts.write_text(
        f"tmpfs /dev/shm tmpfs rw,huge=always 0 0\ntmpfs /dev/shm tmpfs {options} 0 0\n"
    )
    assert check_huge_pages(mounts, shmem_enabled).state == "ok", "a kernel without any"
    shmem_enabled.write_text(f"always within_size advise [{overall}] other\n")
    found = check_huge_pages(mounts, shmem_enabled)
    assert found.state == state
    assert ("mount -o remount,huge=within_size" in found.to_do) == (state == "warning")


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_permissions(tmp_path).state == "ok"  # no kvgpud: another finding says so
    (tmp_path / "kvgpud.sock").touch()
    assert check_permissions(tmp_path).state == "ok"
    monkeypatch.setattr(os, "access", lambda *_: False)
    closed = check_permissions(tmp_path)
    assert closed.state == "failed"
    assert "adduser" in closed.to_do


def test_trust_note_says_that_one_tenant_has_a_host() -> None:
    assert "one tenant" in TRUST_NOTE


NVRM = "NVRM version: NVIDIA UNIX x86_64 Module  {}  Wed Jul  2 02:11\nGCC version: 13.3\n"
NVRM_OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"


@pytest.mark.parametrize("text", [NVRM, NVRM_OPEN])
@pytest.mark.parametrize(
    ("library", "module", "state", "to_do"),
    [
        ("580.95.05", "580.95.05", "ok", ""),
        ("580.95.05", "580.82.07", "failed", "reboot"),
        ("570.10.01", "570.10.01", "warning", "580 or newer"),
        ("580.95.05", "", "failed", "modprobe nvidia"),
        ("", "580.95.05", "failed", "libcuda1"),
        ("", "", "warning", "install NVIDIA's driver"),
    ],
)
def test_driver(
    text: str, library: str, module: str, state: str, to_do: str, tmp_path: Path
) -> None:
    version, found = tmp_path / "version", []
    if module:
        version.write_text(text.format(module))
    if library:
        (tmp_path / f"libcuda.so.{library}").touch()
        (tmp_path / "libcuda.so.1").symlink_to(f"libcuda.so.{library}")
        found.append(tmp_path / "libcuda.so.1")
    finding = check_driver(found, version)
    assert finding.state == state
    assert to_do in finding.to_do
    assert bool(finding.to_do) == (state != "ok")


def test_workers_that_are_not_confined_are_a_warning() -> None:
    assert check_confinement("").state == "ok"
    finding = check_confinement("workers' memory has no limit: /sys/fs/cgroup is no cgroup v2")
    assert finding.state == "warning"
    assert "no cgroup v2" in finding.detail
    assert "unified_cgroup_hierarchy" in finding.to_do


@pytest.mark.parametrize(
    ("flags", "device", "expected", "to_do"),
    [
        ("fpu vmx sse", "kvm", True, ""),
        ("fpu svm", "kvm", True, ""),
        ("fpu sse", "kvm", False, "firmware"),
        ("fpu vmx", "none", False, "modprobe"),
    ],
)
@pytest.mark.parametrize("may_open", [True, False])
def test_kvm_needs_processor_and_device_but_not_that_this_user_may(
    may_open: bool,
    flags: str,
    device: str,
    expected: bool,
    to_do: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    (tmp_path / "kvm").touch()
    monkeypatch.setattr(os, "access", lambda *_: may_open)  # root may always
    assert has_kvm(cpuinfo, tmp_path / device) is expected
    finding = check_kvm(cpuinfo, tmp_path / device)
    assert (finding.state == "ok") is expected
    assert to_do in finding.to_do
    assert bool(finding.to_do) is not expected
    assert ("opens" in finding.detail) is (expected and may_open)


@pytest.mark.parametrize(
    ("exposed", "allow_hmm", "disabled", "state"),
    [
        ([False, True], False, "0", "failed"),  # where VmRegistry refuses
        ([False, True], False, "1", "failed"),  # set after the module was loaded, or ATS
        ([False, True], True, "0", "warning"),
        ([False, False], False, "0", "ok"),  # this processor or kernel has none
        ([], False, "0", "warning"),
        ([], False, "1", "ok"),
        ([], False, None, "ok"),
    ],
)
def test_hmm_is_a_failure_where_kvgpud_refuses_vms(
    exposed: list[bool], allow_hmm: bool, disabled: str | None, state: str, tmp_path: Path
) -> None:
    parameter = tmp_path / "uvm_disable_hmm"
    if disabled:
        parameter.write_text(f"{disabled}\n")
    devices = [{"pageable_memory_access": value} for value in exposed]
    finding = check_hmm(devices, allow_hmm, parameter)
    assert finding.state == state
    assert ("uvm_disable_hmm=1" in finding.to_do) is (state != "ok")
    assert ("allow_hmm = true" in finding.to_do) is (state == "failed")


@pytest.mark.usefixtures("fake_worker")
@pytest.mark.parametrize(
    ("worker", "allow_hmm", "state"),
    [("hmm", False, "failed"), ("hmm", True, "warning"), ("", False, "ok")],
)
def test_hmm_is_what_kvgpud_found(
    worker: str, allow_hmm: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path, allow_hmm=allow_hmm):
            finding = await asyncio.to_thread(_check_hmm, tmp_path)
            assert finding.state == state

    monkeypatch.setenv("FAKE_WORKER", worker)
    run(body)
