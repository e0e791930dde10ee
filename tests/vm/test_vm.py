# SPDX-License-Identifier: Apache-2.0
"""CUDA processes in a virtual machine, from their first call to every way they can end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from framework.host_services import RUNTIME_DIR, wait_until
from framework.linger import sessions, start_linger, wait_for_progress
from framework.vm import AS_NOBODY, Vm
from framework.workers import worker_pids

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]


@pytest.mark.smoke
def test_unmodified_program_computes_in_a_vm(vm: Vm) -> None:
    output = vm.run(f"cd /tmp && {AS_NOBODY} /payload/demo", timeout_s=240)
    assert output.status == 0, output.stdout + output.stderr
    wait_until("its session is gone", lambda: not sessions(), 2)


def test_two_processes_compute_at_once(vm: Vm) -> None:
    names = ("first", "second")
    for name in names:
        start_linger(vm, name)
    assert len(sessions()) == 2
    assert len(worker_pids(RUNTIME_DIR)) == 2
    for name in names:
        wait_for_progress(vm, name)


def test_sigkill_of_one_ends_its_session_within_two_seconds(vm: Vm) -> None:
    killed, living = start_linger(vm, "killed"), start_linger(vm, "living")
    workers = worker_pids(RUNTIME_DIR)
    assert len(workers) == 2
    vm.check(f"kill -KILL {killed}")
    begun = time.monotonic()
    wait_until("its session is gone", lambda: len(sessions()) == 1, 2)
    assert time.monotonic() - begun < 2
    wait_until("its worker is gone", lambda: len(worker_pids(RUNTIME_DIR)) == 1, 2)
    wait_for_progress(vm, "living")
    assert vm.run(f"kill -0 {living}").status == 0


def test_restarted_agent_leaves_processes_alone(vm: Vm) -> None:
    pid = start_linger(vm, "steady")
    vm.check("systemctl restart kvgpu-guest")
    wait_for_progress(vm, "steady")
    assert len(sessions()) == 1
    vm.check(f"kill -KILL {pid}")
    wait_until("its session is gone", lambda: not sessions(), 2)


def test_destroy_under_a_running_program_frees_everything(vm: Vm) -> None:
    start_linger(vm, "doomed")
    region = Path(f"/dev/shm/kvgpu-{vm.uuid()}")
    assert region.exists()
    assert worker_pids(RUNTIME_DIR)
    vm.destroy()
    wait_until("the session is gone", lambda: not sessions(), 5)
    wait_until("the worker is gone", lambda: not worker_pids(RUNTIME_DIR), 5)
    wait_until("the region is gone", lambda: not region.exists(), 5)


def test_start_stop_start_serves_again(vm: Vm) -> None:
    for _ in range(2):
        start_linger(vm, "again")
        assert len(sessions()) == 1
        vm.destroy()
        wait_until("the session is gone", lambda: not sessions(), 5)
        vm.start()  # the guest's service starts by itself
    start_linger(vm, "again")
