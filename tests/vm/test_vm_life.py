# SPDX-License-Identifier: Apache-2.0
"""What may happen to a VM and its daemons while a process in it computes and checks its results."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from framework.guest_image import GuestImage
from framework.host_services import RUNTIME_DIR, HostError, kvgpud, virsh, wait_until
from framework.linger import rounds, sessions, start_linger, wait_for_progress
from framework.packages import install_command
from framework.vm import Vm
from framework.workers import block_offset, worker_pids

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import HostStatusRequest

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]


def test_agent_killed_is_not_noticed(vm: Vm) -> None:
    pid = start_linger(vm, "steady")
    before = sessions()
    vm.check("systemctl kill --signal=KILL kvgpu-agentd")
    wait_until("the agent is back", lambda: vm.run("pgrep kvgpu-agentd").status == 0, 30)
    wait_for_progress(vm, "steady")
    assert sessions() == before
    vm.check(f"kill -KILL {pid}")
    wait_until("its session is gone", lambda: not sessions(), 5)


def test_kvgpud_restart_by_kill_9_is_not_noticed(
    vm: Vm, host: Path, daemons: contextlib.ExitStack
) -> None:
    staying, dying = start_linger(vm, "staying"), start_linger(vm, "dying")
    before = {info["pid"]: info for info in sessions()}
    with ApiClient(RUNTIME_DIR) as api:
        os.kill(api.ask(HostStatusRequest())["pid"], signal.SIGKILL)
    wait_for_progress(vm, "staying")
    vm.check(f"kill -KILL {dying}")
    assert len(worker_pids(RUNTIME_DIR)) == 2, "nobody can know yet"
    daemons.enter_context(kvgpud(host / "second"))
    wait_until("the dead one's session is gone", lambda: len(sessions()) == 1, 20)
    assert sessions() == [before[staying]]
    wait_for_progress(vm, "staying")
    start_linger(vm, "new")


def test_worker_killed_is_one_error_and_the_next_program_works(vm: Vm) -> None:
    start_linger(vm, "dying")
    (worker,) = worker_pids(RUNTIME_DIR)
    os.kill(worker, signal.SIGKILL)
    is_there = "pgrep -f '^/payload/linger /tmp/dying$'"
    wait_until("the program ends", lambda: vm.run(is_there).status == 1, 10)
    log = vm.check("cat /tmp/dying.log")
    assert "the session has ended" in log, log
    assert "CUDA error 999" in log, log
    assert not sessions()
    start_linger(vm, "new")


def test_vm_paused_and_resumed(vm: Vm) -> None:
    start_linger(vm, "steady")
    before = sessions()
    virsh("suspend", vm.name)
    time.sleep(15)  # longer than any limit of the agent's
    assert sessions() == before, "a paused VM is not dead"
    virsh("resume", vm.name)
    wait_for_progress(vm, "steady")
    assert sessions() == before


def test_vm_is_not_suspended_to_disk_under_a_session(vm: Vm, tmp_path: Path) -> None:
    """What the GPU holds is not in a VM's saved state: libvirt refuses, and all goes on."""
    start_linger(vm, "steady")
    before = sessions()
    for command in (["managedsave", vm.name], ["save", vm.name, str(tmp_path / "state")]):
        with pytest.raises(HostError, match="shmem"):
            virsh(*command)
    wait_for_progress(vm, "steady")
    assert sessions() == before


def test_clock_stepped_in_the_guest(vm: Vm) -> None:
    start_linger(vm, "steady")
    before = sessions()
    for step in ("+1 day", "-2 days", "+1 day"):
        vm.check(f"date --set '{step}'")
        wait_for_progress(vm, "steady")
    assert sessions() == before


def test_reboot_of_the_guest_ends_sessions_and_zeroes_their_memory(vm: Vm) -> None:
    start_linger(vm, "doomed")
    (worker,) = worker_pids(RUNTIME_DIR)
    block = block_offset(RUNTIME_DIR, worker)
    boot_id = vm.check("cat /proc/sys/kernel/random/boot_id")
    region = os.open(f"/dev/shm/kvgpu-{vm.uuid()}", os.O_RDONLY)
    try:
        assert os.pread(region, 4096, block).strip(b"\0")
        vm.spawn("reboot -f")
        wait_until("its session is gone", lambda: not sessions(), 120)
        wait_until("its worker is gone", lambda: not worker_pids(RUNTIME_DIR), 5)
        wait_until(
            "its memory is zero", lambda: not os.pread(region, 16 << 20, block).strip(b"\0"), 5
        )
    finally:
        os.close(region)
    vm.wait_for_boot()
    assert vm.check("cat /proc/sys/kernel/random/boot_id") != boot_id
    start_linger(vm, "after")


def test_two_vms_compute_and_see_their_own(
    vm: Vm, image: GuestImage, repo: Path, linger: Path
) -> None:
    start_linger(vm, "here")
    with Vm("kvgpu-other", image, [repo, linger]) as other:
        other.start()
        other.check(install_command("/payload/repo", "kvgpu-guest"), timeout_s=120)
        start_linger(other, "there")
        assert {info["vm"] for info in sessions()} == {vm.name, other.name}
        assert rounds(vm, "there") == rounds(other, "here") == 0
        wait_for_progress(vm, "here")
        wait_for_progress(other, "there")
        other.destroy()
        wait_until("the other's session is gone", lambda: len(sessions()) == 1, 5)
        wait_for_progress(vm, "here")


def without_kvgpu(definition: str) -> str:
    """Return the domain's XML without what kvgpu put there."""
    domain = ElementTree.fromstring(definition)
    devices, metadata = domain.find("devices"), domain.find("metadata")
    assert devices is not None
    assert metadata is not None
    domain.remove(metadata)
    ours = [each for each in devices.iter("shmem") if each.get("name", "").startswith("kvgpu-")]
    for channel in devices.iter("channel"):
        target = channel.find("target")
        if target is not None and target.get("name", "").startswith("org.kvgpu."):
            ours.append(channel)
    assert len(ours) == 2
    for each in ours:
        devices.remove(each)
    return ElementTree.tostring(domain, encoding="unicode")


@pytest.mark.usefixtures("host")
def test_detached_and_started_again(image: GuestImage, repo: Path, linger: Path) -> None:
    install = install_command("/payload/repo", "kvgpu-guest")
    with Vm("kvgpu-detach", image, [repo, linger]) as vm:
        attached = vm.definition()
        vm.start()
        vm.check(install, timeout_s=300)
        start_linger(vm, "with")
        vm.destroy()
        virsh("define", "/dev/stdin", stdin=without_kvgpu(attached))
        vm.start()
        without = vm.run("/payload/linger /tmp/without", timeout_s=120)
        assert without.status == 1, "there is no GPU to be had"
        assert "kvgpu: " in without.stderr, without.stderr
        assert "cuInit: CUDA error" in without.stderr
        assert vm.name not in {info["vm"] for info in sessions()}
        vm.destroy()
        virsh("define", "/dev/stdin", stdin=attached)
        vm.start()
        start_linger(vm, "again")
