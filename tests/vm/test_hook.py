# SPDX-License-Identifier: Apache-2.0
"""The hook as libvirtd runs it: a veto that virsh shows, a release that may come at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.guest_image import GuestImage
from framework.host_services import HOOK, RUNTIME_DIR, HostError, kvgpud, virsh
from framework.vm import Vm

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import HostStatusRequest

pytestmark = [pytest.mark.vm, pytest.mark.timeout(300)]

START_S = 10.0  # what libvirt itself needs, and the hook's 2 s


@pytest.fixture
def idle(host: Path, image: GuestImage) -> Iterator[Vm]:
    """A VM that is shut off."""
    with Vm("kvgpu-hook", image) as vm:
        yield vm


def refused_start(vm: Vm, message: str) -> None:
    begin_s = time.monotonic()
    with pytest.raises(HostError, match=message):
        virsh("start", vm.name)
    assert time.monotonic() - begin_s < START_S
    assert virsh("domstate", vm.name).strip() == "shut off"


def pid_of_kvgpud() -> int:
    with ApiClient(RUNTIME_DIR) as api:
        return int(api.ask(HostStatusRequest())["pid"])


def region(vm: Vm) -> Path:
    return Path(f"/dev/shm/kvgpu-{vm.uuid()}")


def test_veto_when_the_region_cannot_be_made_is_shown_by_virsh(idle: Vm) -> None:
    region(idle).mkdir()
    try:
        refused_start(idle, r"kvgpu: kvgpu-hook: prepare: .*kvgpu-")
    finally:
        region(idle).rmdir()
    idle.start()  # nothing is left of the refused start


def test_veto_without_kvgpud_says_to_start_it(
    idle: Vm, host: Path, daemons: contextlib.ExitStack
) -> None:
    os.kill(pid_of_kvgpud(), signal.SIGKILL)
    try:
        refused_start(idle, r"kvgpu: kvgpu-hook: prepare: kvgpud cannot be reached .*start kvgpud")
    finally:
        daemons.enter_context(kvgpud(host / "after-veto"))
    virsh("start", idle.name)


def test_kvgpud_that_hangs_does_not_hang_the_start(idle: Vm) -> None:
    """Its socket accepts, since the kernel does that, and nobody answers."""
    pid = pid_of_kvgpud()
    os.kill(pid, signal.SIGSTOP)
    try:
        refused_start(idle, r"kvgpu: kvgpu-hook: prepare: kvgpud did not answer within 1.5 s")
    finally:
        os.kill(pid, signal.SIGCONT)
    virsh("start", idle.name)


def test_release_is_idempotent(idle: Vm) -> None:
    """libvirt says `stopped` and `release` after a refused start, too; here they come once more."""
    definition = idle.definition()

    def say(operation: str, sub_operation: str) -> None:
        command = [str(HOOK), idle.name, operation, sub_operation, "-"]
        done = subprocess.run(command, input=definition, text=True, capture_output=True, timeout=10)
        assert (done.returncode, done.stderr) == (0, "")

    for _ in range(2):
        region(idle).mkdir()
        refused_start(idle, "kvgpu: kvgpu-hook: prepare: ")
        region(idle).rmdir()
        for _ in range(2):
            say("stopped", "end")
            say("release", "end")
        virsh("start", idle.name)
        assert region(idle).exists()
        idle.destroy()
        assert not region(idle).exists()
        say("release", "end")
