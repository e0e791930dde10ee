# SPDX-License-Identifier: Apache-2.0
"""Packages upgraded by apt under programs that compute."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from framework.chroot import dependencies
from framework.guest_image import GuestImage
from framework.host_services import REPOSITORY, wait_until
from framework.linger import rounds, sessions, start_linger, wait_for_progress
from framework.packages import install_command, older_repo
from framework.vm import AS_NOBODY, Vm

from kvgpu.host.control_frames import PROTOCOL_MAJOR, PROTOCOL_MINOR

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

LIBRARY = "/usr/lib/x86_64-linux-gnu/kvgpu/libcuda.so.1"
PROGRAMS = REPOSITORY / "build" / "release" / "tests" / "programs"


def of_vm(vm: Vm) -> list[dict[str, Any]]:
    return [info for info in sessions() if info["vm"] == vm.name]


def speaks(info: dict[str, Any], minor: int) -> bool:
    """Tell by a session's log which minor version of the protocol its library has."""
    return f"speaks protocol {PROTOCOL_MAJOR}.{minor}," in Path(info["log"]).read_text()


def maps(vm: Vm, name: str) -> str:
    return vm.check(f"cat /proc/$(pgrep -f '^/payload/linger /tmp/{name}$')/maps")


@pytest.mark.usefixtures("host")
def test_upgrade_of_the_guest_package_is_not_noticed(
    image: GuestImage, repo: Path, linger: Path
) -> None:
    payload = [repo, older_repo(repo), linger, PROGRAMS / "demo"]
    with Vm("kvgpu-upgrade", image, payload) as vm:
        vm.start()
        vm.check(install_command("/payload/older-repo", "kvgpu-guest"), timeout_s=300)
        pid = start_linger(vm, "older")
        (before,) = of_vm(vm)
        assert speaks(before, PROTOCOL_MINOR - 1)
        upgrade = vm.check(install_command("/payload/repo", "kvgpu-guest"), timeout_s=300)
        assert re.search(r"Unpacking kvgpu-guest \(.*\) over \(0\.0\.9\)", upgrade), upgrade
        wait_for_progress(vm, "older")
        assert of_vm(vm) == [before], "the same session, the same worker"
        assert f"{LIBRARY} (deleted)" in maps(vm, "older"), "it keeps its library"
        start_linger(vm, "newer")
        assert f"{LIBRARY}\n" in maps(vm, "newer")
        (newer,) = [info for info in of_vm(vm) if info != before]
        assert speaks(newer, PROTOCOL_MINOR)
        output = vm.run(f"cd /tmp && {AS_NOBODY} /payload/demo", timeout_s=240)
        assert output.status == 0, output.stdout + output.stderr
        wait_for_progress(vm, "older")
        wait_for_progress(vm, "newer")
        vm.check(f"kill -KILL {pid}")
        wait_until("its session is gone", lambda: of_vm(vm) == [newer], 5)


@pytest.fixture
def host_machine(
    host: Path, image: GuestImage, repo: Path, linger: Path, tmp_path: Path
) -> Iterator[Vm]:
    """A machine with systemd where an older kvgpu-host was installed and serves."""
    debs = tmp_path / "debs"
    debs.mkdir()
    for deb in dependencies("python3", "python3-libvirt"):
        shutil.copy2(deb, debs)
    payload = [repo, older_repo(repo), debs, linger]
    with Vm("kvgpu-host-upgrade", image, payload) as vm:
        vm.start()
        install = "apt-get install -y --no-install-recommends"
        vm.check(f"DEBIAN_FRONTEND=noninteractive {install} /payload/debs/*.deb", timeout_s=600)
        vm.check(install_command("/payload/older-repo", "kvgpu-host"), timeout_s=600)
        yield vm


def start_local(vm: Vm) -> int:
    """Start a program on the machine itself that computes until it is killed."""
    process = vm.spawn("exec kvgpu run --pinned 64MiB -- /payload/linger /tmp/local")
    wait_until("it computes", lambda: rounds(vm, "local") > 0, 120)
    return process


def assert_limited(vm: Vm, pid: int) -> None:
    """The worker is in a group of its own, out of kvgpud's unit; kvgpud had nothing to warn of."""
    group = vm.check(f"sed -n 's/^0:://p' /proc/{pid}/cgroup").strip()
    assert re.fullmatch(r"/kvgpu/worker-\d+-\d+", group), group
    assert vm.check(f"cat /sys/fs/cgroup{group}/pids.max").strip() == "1024"
    assert int(vm.check(f"cat /sys/fs/cgroup{group}/memory.max")) >= 8 << 30
    journal = vm.check("journalctl --unit kvgpud --no-pager")
    assert "cgroup" not in journal, journal
    assert "left-over" not in journal, journal


def test_upgrade_of_the_host_package_is_not_noticed(host_machine: Vm) -> None:
    vm = host_machine
    assert vm.check("systemctl is-active kvgpud").strip() == "active"
    process = start_local(vm)
    before = json.loads(vm.check("kvgpu session list --json"))
    assert len(before) == 1
    assert_limited(vm, before[0]["worker_pid"])
    main_pid = vm.check("systemctl show --property MainPID kvgpud")
    upgrade = vm.check(install_command("/payload/repo", "kvgpu-host"), timeout_s=600)
    assert re.search(r"Unpacking kvgpu-host \(.*\) over \(0\.0\.9\)", upgrade), upgrade
    assert vm.check("systemctl is-active kvgpud").strip() == "active"
    assert vm.check("systemctl show --property MainPID kvgpud") != main_pid
    assert json.loads(vm.check("kvgpu session list --json")) == before
    wait_for_progress(vm, "local")
    vm.check("apt-get remove -y kvgpu-host", timeout_s=240)
    assert vm.wait(process, timeout_s=60).status != 0, "sessions do not outlive the package"
    assert vm.run("pgrep kvgpu").stdout == "", "nothing of it runs on"
