# SPDX-License-Identifier: Apache-2.0
"""`kvgpu vm attach|detach --live`: a running VM gets its devices and loses them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.guest_image import GuestImage
from framework.host_services import REPOSITORY, HostError, kvgpu, virsh, wait_until
from framework.linger import sessions, start_linger, wait_for_progress
from framework.packages import install_command
from framework.vm import AS_NOBODY, Output, Vm

from kvgpu.host.domain_xml import parts, read_definition

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

PROGRAM = REPOSITORY / "build" / "release" / "tests" / "programs" / "demo"
SLICES = ("--memory=1GiB", "--pinned=256MiB")


@pytest.fixture(scope="module")
def plain(host: Path, image: GuestImage, repo: Path, linger: Path) -> Iterator[Vm]:
    """A running VM with the guest package and no device of kvgpu's."""
    with Vm("kvgpu-live", image, [repo, linger, PROGRAM]) as vm:
        kvgpu("vm", "detach", vm.name)
        vm.start()
        vm.check(install_command("/payload/repo", "kvgpu-guest"), timeout_s=240)
        yield vm


def run_demo(vm: Vm) -> Output:
    return vm.run(f"cd /tmp && {AS_NOBODY} /payload/demo", timeout_s=240)


def assert_no_device(vm: Vm) -> None:
    without = vm.run(f"{AS_NOBODY} /payload/linger /tmp/without", timeout_s=30)
    assert without.status == 1
    assert "CUDA error 100" in without.stderr, without.stderr  # CUDA_ERROR_NO_DEVICE
    assert "this VM has no kvgpu device" in without.stderr


def region(vm: Vm) -> Path:
    return Path(f"/dev/shm/kvgpu-{vm.uuid()}")


def test_live_attach_gives_a_running_vm_its_gpu_and_detach_takes_it(plain: Vm) -> None:
    boot_id = plain.check("cat /proc/sys/kernel/random/boot_id")
    assert_no_device(plain)
    for _ in range(2):
        kvgpu("vm", "attach", plain.name, *SLICES, "--live")
        output = run_demo(plain)
        assert output.status == 0, output.stdout + output.stderr
        assert "demo: all results correct" in output.stdout
        assert "port alone" not in plain.check("journalctl -u kvgpu-guest")
        kept = read_definition(virsh("dumpxml", "--inactive", plain.name))
        assert kept
        assert kept == read_definition(plain.definition())
        wait_until("its session is gone", lambda: not sessions(), 5)
        kvgpu("vm", "detach", plain.name, "--live")
        assert_no_device(plain)
        assert not parts(plain.definition()).is_any
        assert not parts(virsh("dumpxml", "--inactive", plain.name)).is_any
        assert not region(plain).exists()
    assert plain.check("cat /proc/sys/kernel/random/boot_id") == boot_id


def test_live_detach_is_refused_while_sessions_run_unless_forced(plain: Vm) -> None:
    kvgpu("vm", "attach", plain.name, *SLICES, "--live")
    with pytest.raises(HostError, match=r"already, and they cannot be resized \(kvgpu vm detach"):
        kvgpu("vm", "attach", plain.name, *SLICES, "--live")
    start_linger(plain, "busy")
    with pytest.raises(HostError, match=r"uses its slices: linger \(pid \d+\) \(end these"):
        kvgpu("vm", "detach", plain.name, "--live")
    wait_for_progress(plain, "busy")
    kvgpu("vm", "detach", plain.name, "--live", "--force")
    wait_until("its program ends", lambda: plain.run("pgrep linger").status == 1, 10)
    assert not sessions()
    assert_no_device(plain)
    plain.destroy()
    plain.start()
    assert_no_device(plain)
