# SPDX-License-Identifier: Apache-2.0
"""What happens behind the hook's back is noticed by libvirt's events: served, or complained of."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.guest_image import GuestImage
from framework.host_services import HOOK, kvgpu, virsh, wait_until
from framework.linger import sessions, start_linger
from framework.packages import install_command
from framework.vm import Vm

from kvgpu.host.domain_xml import parts
from kvgpu.host.xml_elements import NAMESPACE

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

REGION_BYTES = 1 << 30


@pytest.fixture(scope="module")
def guest(host: Path, image: GuestImage, repo: Path, linger: Path) -> Iterator[Vm]:
    """A VM that is shut off, with the guest package."""
    with Vm("kvgpu-events", image, [repo, linger]) as vm:
        vm.start()
        vm.check(
            install_command("/payload/repo", "kvgpu-guest") + " && sync",
            timeout_s=240,
        )
        vm.destroy()
        yield vm


@pytest.fixture
def no_hook(guest: Vm, tmp_path: Path) -> Iterator[None]:
    """libvirt without kvgpu's hook, until the VM is shut off again."""
    shutil.move(HOOK, tmp_path)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            guest.destroy()
        shutil.copy2(tmp_path / HOOK.name, HOOK)


def log_of_kvgpud(host: Path) -> str:
    return "".join(log.read_text() for log in host.rglob("kvgpud.log"))


def region(vm: Vm) -> Path:
    return Path(f"/dev/shm/kvgpu-{vm.uuid()}")


@pytest.mark.usefixtures("no_hook")
def test_vm_started_without_the_hook_is_served(guest: Vm) -> None:
    guest.start()
    start_linger(guest, "unhooked")
    assert [info["vm"] for info in sessions()] == [guest.name]
    made = region(guest).stat()
    assert (made.st_uid, made.st_mode & 0o777) == (0, 0o660), "QEMU made it, kvgpud has taken it"
    guest.destroy()
    wait_until("its session is gone", lambda: not sessions(), 10)
    wait_until("its region is gone", lambda: not region(guest).exists(), 10)


@pytest.mark.usefixtures("no_hook")
def test_vm_started_without_the_hook_on_a_file_of_another_is_complained_of(
    guest: Vm, host: Path
) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with region(guest).open("wb") as file:
        file.truncate(REGION_BYTES)
        os.fchown(file.fileno(), nobody, -1)
        os.fchmod(file.fileno(), 0o666)
    try:
        virsh("start", guest.name)
        complaint = (
            f"{guest.name}: runs, and cannot be served: {region(guest)} has {REGION_BYTES} B"
        )
        wait_until("it is said", lambda: complaint in log_of_kvgpud(host), 10)
        assert f"owner {nobody}" in log_of_kvgpud(host)
        assert region(guest).stat().st_uid == nobody
    finally:
        region(guest).unlink()


def test_devices_plugged_in_by_virsh_are_noticed(guest: Vm, host: Path, tmp_path: Path) -> None:
    ours = parts(guest.definition())
    kvgpu("vm", "detach", guest.name)
    guest.start()
    for name in ("shmem", "channel"):
        (tmp_path / name).write_text(getattr(ours, name))
        virsh("attach-device", guest.name, tmp_path / name, "--live")
    complaint = f"{guest.name}: has kvgpu's devices and no slices, and is not served"
    wait_until("it is said", lambda: complaint in log_of_kvgpud(host), 10)
    metadata = ("--uri", NAMESPACE, "--key", "kvgpu", "--set", ours.metadata)
    virsh("metadata", guest.name, *metadata, "--live")
    start_linger(guest, "plugged")
    assert [info["vm"] for info in sessions()] == [guest.name]
    virsh("detach-device", guest.name, tmp_path / "channel", "--live")
    wait_until("its session is gone", lambda: not sessions(), 10)
    virsh("detach-device", guest.name, tmp_path / "shmem", "--live")
    wait_until("its region is gone", lambda: not region(guest).exists(), 30)
