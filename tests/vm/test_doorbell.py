# SPDX-License-Identifier: Apache-2.0
"""A VM with an ivshmem-doorbell device: its programs wake their workers by one write."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.guest_image import GuestImage
from framework.host_services import REPOSITORY, RUNTIME_DIR, kvgpu, kvgpud, wait_until
from framework.idle import Idle
from framework.linger import sessions, start_linger, wait_for_progress
from framework.packages import install_command
from framework.vm import AS_NOBODY, Vm
from framework.workers import worker_pids

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import HostStatusRequest, VmListRequest

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

PROGRAM = REPOSITORY / "build" / "release" / "tests" / "programs" / "demo"
N_CALLS = 40
IDLE_S = 5.0


@pytest.fixture(scope="module")
def bell(host: Path, image: GuestImage, repo: Path, linger: Path, wakeup: Path) -> Iterator[Vm]:
    payload = [repo, linger, wakeup, PROGRAM]
    with Vm("kvgpu-doorbell", image, payload, xml_options=["--doorbell"]) as vm:
        vm.start()
        vm.check(install_command("/payload/repo", "kvgpu-guest"), timeout_s=240)
        yield vm


def n_kicks(vm: Vm) -> int:
    """Return how many wake-ups have come through the VM's port."""
    with ApiClient(RUNTIME_DIR) as api:
        found = [info for info in api.ask(VmListRequest())["vms"] if info["name"] == vm.name]
    return int(found[0]["n_kicks"])


def server_of(vm: Vm) -> Path:
    return RUNTIME_DIR / "ivshmem" / f"{vm.uuid()}.sock"


def wakeup_us(vm: Vm) -> float:
    """Return what a call takes whose worker sleeps; the process goes on, idle."""
    vm.check("rm -f /tmp/wakeup.log")
    vm.spawn(f"exec {AS_NOBODY} /payload/wakeup {N_CALLS} >/tmp/wakeup.log 2>&1")
    wait_until("it has measured", lambda: bool(vm.check("cat /tmp/wakeup.log").strip()), 60)
    return float(vm.check("cat /tmp/wakeup.log"))


def end_programs(vm: Vm) -> None:
    vm.run("pkill -KILL 'linger|wakeup'")
    wait_until("its sessions are gone", lambda: not sessions(), 10)


def test_doorbell_vm_computes_and_its_kicks_pass_kvgpud_by(bell: Vm) -> None:
    assert not Path(f"/dev/shm/kvgpu-{bell.uuid()}").exists()
    before = n_kicks(bell)
    output = bell.run(f"cd /tmp && {AS_NOBODY} /payload/demo", timeout_s=240)
    assert output.status == 0, output.stdout + output.stderr
    assert "demo: all results correct" in output.stdout
    wakeup_us(bell)
    assert sessions()[0]["doorbell"] != 0
    assert n_kicks(bell) == before
    end_programs(bell)


def test_doorbell_is_found_by_the_check_in_the_guest(bell: Vm) -> None:
    output = bell.run(f"{AS_NOBODY} kvgpu-check", timeout_s=240)
    assert output.status == 0, output.stdout + output.stderr
    assert "kick     doorbell of the ivshmem device" in output.stdout
    assert "result correct" in output.stdout


def test_doorbell_worker_does_nothing_while_idle(bell: Vm) -> None:
    wakeup_us(bell)
    (worker,) = worker_pids(RUNTIME_DIR)
    time.sleep(0.5)  # it spins a little first
    idle = Idle(worker)
    time.sleep(IDLE_S)
    print(f"figure: an idle session's worker in {IDLE_S:g} s: {idle.check()}")
    end_programs(bell)


def test_doorbell_is_no_slower_than_the_port(bell: Vm, vm: Vm) -> None:
    by_doorbell = wakeup_us(bell)
    before = n_kicks(vm)
    by_port = wakeup_us(vm)
    assert n_kicks(vm) > before, "the other VM has no doorbell"
    print(
        f"figure: a call whose worker sleeps, VM under TCG, median of {N_CALLS}: "
        f"{by_doorbell:.0f} µs by doorbell, {by_port:.0f} µs through the port"
    )
    assert by_doorbell < by_port
    vm.run("pkill -KILL wakeup")
    end_programs(bell)


def test_doorbell_session_survives_kvgpud(
    bell: Vm, host: Path, daemons: contextlib.ExitStack
) -> None:
    start_linger(bell, "steady")
    before = sessions()
    with ApiClient(RUNTIME_DIR) as api:
        os.kill(api.ask(HostStatusRequest())["pid"], signal.SIGKILL)
    wait_for_progress(bell, "steady")
    daemons.enter_context(kvgpud(host / "after-doorbell"))
    wait_until("it is taken up", lambda: sessions() == before, 20)
    wait_for_progress(bell, "steady")
    bell.check("systemctl restart kvgpu-guest")
    wait_for_progress(bell, "steady")
    start_linger(bell, "new")
    assert len({info["doorbell"] for info in sessions()} - {0}) == 2
    end_programs(bell)


def test_doorbell_vm_leaves_nothing_and_starts_again(bell: Vm) -> None:
    server = server_of(bell)
    assert server.exists()
    start_linger(bell, "doomed")
    bell.destroy()
    wait_until("the session is gone", lambda: not sessions(), 5)
    wait_until("its socket is gone", lambda: not server.exists(), 5)
    wait_until("the server is gone", lambda: str(server) not in open_sockets(), 5)
    bell.start()
    start_linger(bell, "again")
    end_programs(bell)


def test_doorbell_is_plugged_in_and_pulled_live(bell: Vm) -> None:
    server = server_of(bell)
    kvgpu("vm", "detach", bell.name, "--live", timeout_s=120)
    assert not server.exists()
    slices = ("--memory=1GiB", "--pinned=256MiB")
    kvgpu("vm", "attach", bell.name, *slices, "--doorbell", "--live", timeout_s=120)
    assert server.exists()
    before = n_kicks(bell)
    wakeup_us(bell)
    assert sessions()[0]["doorbell"] != 0
    assert n_kicks(bell) == before
    end_programs(bell)


def open_sockets() -> str:
    return Path("/proc/net/unix").read_text()
